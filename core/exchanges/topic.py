"""Topic bindings in a trie of the words of their keys.

A routing key and a binding key are words separated by dots; the empty key has no words. In a
binding key the word `*` stands for exactly one word, which may be empty, and the word `#` for any
number of them; every other word stands for itself (amqp_semantics.md section 3).

Matching walks the routing key once. Words lead from one `Reached` to the next: the set of nodes
that the words so far lead to, in which a node is once, however many ways lead to it. So patterns
with many `#` cannot make it explode. Each set is worked out when words first lead there, and kept
until a binding changes: a key costs a look into a table for each of its words, whatever the
bindings are. All words that no node of a set knows lead to the same place, so what is kept grows
with the bindings and not with the keys that are published.

Thousands of patterns can be written so that a key is under way in nearly all of their nodes at
once, and each of its words costs a look at all of these. Sets of more than `WIDE` nodes are
therefore not kept; the key goes on in a `_Walk`, so many nodes a turn of the loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from warren.core.exchanges.binding import Binding
from warren.core.scheduling.turns import Unfinished

ONE_WORD = "*"
ANY_WORDS = "#"

WIDE = 256
"""Sets of more nodes are not kept: keys go through them in turns. A key has 128 words at most, so
one whose sets are all smaller costs some milliseconds when it comes first."""

NODES_A_TURN = 5000
"""Nodes that a walk looks at before others have their turn: about one millisecond."""

WALKS_MAX = 4096
"""Walks that are kept, of the keys that were asked for last. All keys of a message, those in CC and
BCC too, are needed at once."""

KEPT_MAX = 1_000_000
"""Sets, nodes and bindings that are kept of walks; beyond that the cache begins anew."""


class _Node:
    """The node of the trie that the words of a binding key lead to.

    `loops`: it stays reached whatever word follows.
    """

    __slots__ = ("any_words", "bindings", "loops", "one_word", "words")

    def __init__(self, loops: bool) -> None:
        self.words: dict[str, _Node] = {}
        self.one_word: _Node | None = None
        self.any_words: _Node | None = None
        self.bindings: dict[Binding, None] = {}
        self.loops = loops

    def is_empty(self) -> bool:
        return not (self.bindings or self.words or self.one_word or self.any_words)

    def child(self, word: str) -> _Node | None:
        if word == ONE_WORD:
            return self.one_word
        if word == ANY_WORDS:
            return self.any_words
        return self.words.get(word)

    def grow(self, word: str) -> _Node:
        """The child for a word of a binding key, created if need be."""
        node = self.child(word)
        if node is None:
            node = _Node(loops=word == ANY_WORDS)
            if word == ONE_WORD:
                self.one_word = node
            elif word == ANY_WORDS:
                self.any_words = node
            else:
                self.words[word] = node
        return node

    def prune(self, word: str) -> None:
        if word == ONE_WORD:
            self.one_word = None
        elif word == ANY_WORDS:
            self.any_words = None
        else:
            del self.words[word]


class Reached:
    """The nodes that some words lead to, and the bindings that end there.

    `after` says where further words lead, as far as they were met: words that a node knows, and
    all others together. `after_any`: no node knows a word, and every word leads there.
    """

    __slots__ = ("after", "after_any", "after_others", "bindings", "nodes")

    def __init__(self, nodes: tuple[_Node, ...]) -> None:
        self.nodes = nodes
        self.after: dict[str, Reached] = {}
        self.after_others: Reached | None = None
        self.after_any: Reached | None = None
        self.bindings = _bindings_of(nodes)


class _Wide(Exception):
    """A word leads to a set of nodes that is too large to be kept."""


class _Walk:
    """The way of one key through sets of any size. `bindings` are those it fits, once found."""

    __slots__ = ("_following", "_found", "_next_node", "_next_word", "_nodes", "_words", "bindings")

    def __init__(self, start: Sequence[_Node], words: Sequence[str]) -> None:
        self.bindings: tuple[Binding, ...] | None = None
        self._words = words
        self._next_word = 0
        self._nodes = start
        self._next_node = 0
        self._following: dict[_Node, None] = {}
        self._found: list[Binding] = []

    def go_on(self) -> None:
        """Look at `NODES_A_TURN` nodes more."""
        left = NODES_A_TURN
        while left > 0 and self.bindings is None:
            nodes = self._nodes[self._next_node : self._next_node + left]
            left -= len(nodes) + 1
            self._next_node += len(nodes)
            if self._next_word < len(self._words):
                _step(nodes, self._words[self._next_word], self._following)
            else:
                self._found += _bindings_of(nodes)
            if self._next_node >= len(self._nodes):
                self._end_of_set()

    def _end_of_set(self) -> None:
        if self._next_word == len(self._words):
            self.bindings = tuple(self._found)
            self._nodes, self._found = (), []
            return
        self._next_word += 1
        self._nodes = list(self._following)
        self._next_node = 0
        self._following = {}


class TopicTrie:
    """Bindings by the pattern in their routing key."""

    def __init__(self) -> None:
        self._root = _Node(loops=False)
        self._start: Reached | None = None
        self._reached: dict[tuple[_Node, ...], Reached] = {}
        self._kept = 0
        # By routing key; the one that was asked for last is the last.
        self._walks: dict[str, _Walk] = {}
        # What walks have found, so that keys which fit the same patterns get one tuple.
        self._found: dict[tuple[Binding, ...], tuple[Binding, ...]] = {}

    def __bool__(self) -> bool:
        return not self._root.is_empty()

    def add(self, binding: Binding) -> None:
        self._change()
        node = self._root
        for word in pattern_of(binding.routing_key):
            node = node.grow(word)
        node.bindings[binding] = None

    def remove(self, binding: Binding) -> None:
        """Forget a binding, and the nodes that lead to no other. Nothing happens without it."""
        self._change()
        words = pattern_of(binding.routing_key)
        path = [self._root]
        for word in words:
            child = path[-1].child(word)
            if child is None:
                return
            path.append(child)
        path[-1].bindings.pop(binding, None)
        for word in reversed(words):
            if not path.pop().is_empty():
                return
            path[-1].prune(word)

    def match(self, routing_key: str) -> tuple[Binding, ...]:
        """The bindings whose pattern the routing key fits, each once.

        Until a binding changes, keys that fit the same patterns in the same way get one tuple.
        Raises `Unfinished` if it takes more than a turn.
        """
        if routing_key in self._walks:
            return self._walk(routing_key)
        reached = self._start
        if reached is None:
            reached = self._start = self._begin()
        if routing_key:
            try:
                for word in routing_key.split("."):
                    reached = (
                        reached.after_any or reached.after.get(word) or self._follow(reached, word)
                    )
            except _Wide:
                return self._walk(routing_key)
        return reached.bindings

    def _walk(self, routing_key: str) -> tuple[Binding, ...]:
        walk = self._walks.pop(routing_key, None)
        if walk is None:
            walk = _Walk(self._begin().nodes, words_of(routing_key))
            if len(self._walks) == WALKS_MAX:
                del self._walks[next(iter(self._walks))]
                self._found.clear()
        self._walks[routing_key] = walk
        if walk.bindings is None:
            walk.go_on()
            if walk.bindings is not None:
                walk.bindings = self._found.setdefault(walk.bindings, walk.bindings)
            raise Unfinished
        return walk.bindings

    def _begin(self) -> Reached:
        nodes: dict[_Node, None] = {}
        _reach(self._root, nodes)
        return self._keep(nodes)

    def _follow(self, reached: Reached, word: str) -> Reached:
        """Find where a word leads that was not met before after these nodes."""
        known = any([word in node.words for node in reached.nodes])
        if not known and reached.after_others is not None:
            return reached.after_others
        nodes: dict[_Node, None] = {}
        _step(reached.nodes, word, nodes)
        if len(nodes) > WIDE:
            raise _Wide
        following = self._keep(nodes)
        if known:
            reached.after[word] = following
            self._kept += 1
        else:
            reached.after_others = following
            if not any([node.words for node in reached.nodes]):
                reached.after_any = following
        return following

    def _keep(self, nodes: dict[_Node, None]) -> Reached:
        """Return the kept answer for these nodes, or a new one, which is kept from now on."""
        key = tuple(nodes)
        reached = self._reached.get(key)
        if reached is None:
            reached = Reached(key)
            self._kept += 1 + len(key) + len(reached.bindings)
            if self._kept > KEPT_MAX:
                self._forget()
            self._reached[key] = reached
        return reached

    def _change(self) -> None:
        """Forget all answers: a binding comes or goes."""
        self._walks.clear()
        self._found.clear()
        self._forget()

    def _forget(self) -> None:
        if self._start is not None or self._reached:
            self._start = None
            self._reached = {}
            self._kept = 0


def words_of(key: str) -> list[str]:
    """The words of a key. `a.` has two, the second one empty; the empty key has none."""
    return key.split(".") if key else []


def pattern_of(binding_key: str) -> list[str]:
    """The words of a binding key, in the one way of many in which wildcards can be written.

    Of wildcards side by side only their numbers matter: `#.*`, `*.#` and `#.*.#` are one or more
    words. So those of the one kind come first, and several `#` are one.
    """
    words: list[str] = []
    any_words = False
    for word in words_of(binding_key):
        if word == ANY_WORDS:
            any_words = True
            continue
        if word != ONE_WORD and any_words:
            words.append(ANY_WORDS)
            any_words = False
        words.append(word)
    if any_words:
        words.append(ANY_WORDS)
    return words


def _bindings_of(nodes: Iterable[_Node]) -> tuple[Binding, ...]:
    return tuple([binding for node in nodes for binding in node.bindings])


def _step(reached: Iterable[_Node], word: str, following: dict[_Node, None]) -> None:
    """Add the nodes to which a word leads from these."""
    for node in reached:
        if node.loops:
            _reach(node, following)
        child = node.words.get(word)
        if child is not None:
            _reach(child, following)
        if node.one_word is not None:
            _reach(node.one_word, following)


def _reach(node: _Node, reached: dict[_Node, None]) -> None:
    """Add the node, and those behind it that need no word."""
    following: _Node | None = node
    while following is not None and following not in reached:
        reached[following] = None
        following = following.any_words
