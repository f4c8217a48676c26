#!/bin/sh
# What came since the last run, as Parquet. From cron:
#
#     5 * * * *  /opt/warren/hourly_archive.sh /var/lib/warren /archive/orders --pattern 'orders.*'
#
# One that failed is finished by the next run of the same hour; what a run of a later hour finds is
# what no finished one has. Two at a time wait for each other.
set -eu
store=$1
archive=$2
shift 2
mkdir -p "$archive"
exec 9> "$archive/.lock"
flock 9
hour=$(date -u +%Y%m%dT%H)
if [ -e "$archive/_SUCCESS" ]; then
    set -- --since latest "$@"
fi
exec warren export run "$store" "$archive" --export "$hour" "$@"
