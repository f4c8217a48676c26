"""The configuration of a cluster: where etcd is, and who its nodes are."""

from __future__ import annotations

from pathlib import Path

import pytest
from config_texts import config, problems

from warren.config import Config
from warren.rabbitmq_conf import ConfigError, parse_config

LINK_FILES = ("cacertfile", "certfile", "keyfile")


class TestCluster:
    def test_a_node_is_alone_unless_it_is_told_where_etcd_is(self) -> None:
        assert Config().cluster is None
        assert config("cluster_formation.peer_discovery_backend = classic_config").cluster is None

    def test_rabbitmqs_keys_say_where_etcd_is(self) -> None:
        cluster = config(
            "cluster_formation.peer_discovery_backend = etcd\n"
            "cluster_formation.etcd.endpoints.1 = one:2379\n"
            "cluster_formation.etcd.endpoints.2 = https://two\n"
            "cluster_formation.etcd.key_prefix = mq\n"
            "cluster_formation.etcd.cluster_name = orders\n"
            "distribution.listener.port_range.min = 4000\n"
            "mirroring_sync_batch_size = 50\n"
            "mirroring_sync_max_throughput = 10MB\n"
            "cluster.secret = sixteen octets at least\n"
        ).cluster
        assert cluster is not None
        assert cluster.etcd_endpoints == ("http://one:2379", "https://two")
        assert cluster.etcd_prefix == "/mq/orders"
        assert (cluster.listener.port, cluster.sync_batch) == (4000, 50)
        assert cluster.sync_rate == 10_000_000
        assert cluster.secret == b"sixteen octets at least"

    def test_the_backend_alone_means_the_etcd_of_this_machine(self) -> None:
        cluster = config("cluster_formation.peer_discovery_backend = etcd").cluster
        assert cluster is not None and cluster.etcd_endpoints == ("http://localhost:2379",)

    def test_where_nodes_are_listed_etcd_is_at_their_hosts(self) -> None:
        nodes = "".join(
            f"cluster_formation.classic_config.nodes.{number} = rabbit@{host}\n"
            for number, host in enumerate(("one.example", "two.example", "one.example"))
        )
        for backend in (
            "",
            "cluster_formation.peer_discovery_backend = classic_config\n",
            "cluster_formation.peer_discovery_backend = rabbit_peer_discovery_classic_config\n",
        ):
            cluster = config(backend + nodes).cluster
            assert cluster is not None
            assert cluster.etcd_endpoints == ("http://one.example:2379", "http://two.example:2379")
        named = config(nodes + "cluster_formation.etcd.host = e\n").cluster
        assert named is not None and named.etcd_endpoints == ("http://e:2379",)
        with pytest.raises(ConfigError, match=r"a node and its host, such as rabbit@one\.example"):
            config("cluster_formation.classic_config.nodes.1 = rabbit")

    def test_a_node_that_is_the_only_one_listed_is_alone(self) -> None:
        assert config("cluster_formation.classic_config.nodes.1 = rabbit@one").cluster is None

    def test_by_dns_etcd_is_wherever_a_name_leads(self) -> None:
        cluster = config(
            "cluster_formation.peer_discovery_backend = dns\n"
            "cluster_formation.dns.hostname = nodes.example\n"
            "cluster_formation.etcd.port = 3000\n"
        ).cluster
        assert cluster is not None
        assert cluster.etcd_endpoints == ("http://nodes.example:3000",)

    @pytest.mark.parametrize("backend", ["dns", "rabbit_peer_discovery_k8s"])
    def test_who_finds_nobody_is_warned(self, backend: str) -> None:
        loaded = parse_config(f"cluster_formation.peer_discovery_backend = {backend}")
        assert loaded.config.cluster is None
        (warning,) = loaded.warnings
        assert "finds no other nodes" in warning

    def test_certificates_for_etcd_mean_tls(self) -> None:
        cluster = config(
            "cluster_formation.etcd.host = e\ncluster_formation.etcd.ssl_options.cacertfile = /ca"
        ).cluster
        assert cluster is not None
        assert cluster.etcd_endpoints == ("https://e:2379",)
        assert cluster.etcd_ssl is not None

    def test_links_are_encrypted_where_all_three_files_are_given(self) -> None:
        etcd = "cluster_formation.etcd.host = e\n"
        keys = {key: f"cluster.links.ssl.{key} = /{key}\n" for key in LINK_FILES}
        cluster = config(etcd + "".join(keys.values())).cluster
        assert cluster is not None and cluster.link_ssl is not None
        assert [getattr(cluster.link_ssl, key) for key in LINK_FILES] == [
            Path(f"/{key}") for key in LINK_FILES
        ]
        plain = config(etcd).cluster
        assert plain is not None and plain.link_ssl is None
        for missing in LINK_FILES:
            given = [line for key, line in keys.items() if key != missing]
            (problem,) = problems(etcd + "".join(given))
            assert "cluster.links.ssl needs all of cacertfile, certfile and keyfile" in problem

    def test_a_short_secret_is_refused_and_not_shown(self) -> None:
        with pytest.raises(ConfigError) as refused:
            parse_config("cluster.secret = short")
        assert "a secret of 16 octets or more was wanted" in str(refused.value)
        cluster = config(
            "cluster_formation.etcd.host = e\ncluster.secret = sixteen octets at least"
        ).cluster
        assert "sixteen" not in repr(cluster)
