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
"""

from __future__ import annotations

from collections.abc import Iterable

from warren.core.exchanges.binding import Binding

ONE_WORD = "*"
ANY_WORDS = "#"

KEPT_MAX = 1_000_000
"""Sets, nodes and bindings that are kept of what words lead to; beyond that it begins anew."""


class _Node:
    """What the words of a binding key lead to. `loops`: it stays reached whatever word follows."""

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
        self.bindings = tuple([binding for node in nodes for binding in node.bindings])


class TopicTrie:
    """Bindings by the pattern in their routing key."""

    def __init__(self) -> None:
        self._root = _Node(loops=False)
        self._start: Reached | None = None
        self._reached: dict[tuple[_Node, ...], Reached] = {}
        self._kept = 0

    def __bool__(self) -> bool:
        return not self._root.is_empty()

    def add(self, binding: Binding) -> None:
        self._forget()
        node = self._root
        for word in words_of(binding.routing_key):
            node = node.grow(word)
        node.bindings[binding] = None

    def remove(self, binding: Binding) -> None:
        """Forget a binding, and the nodes that lead to no other. Nothing happens without it."""
        self._forget()
        words = words_of(binding.routing_key)
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
        """
        reached = self._start
        if reached is None:
            reached = self._start = self._begin()
        if routing_key:
            for word in routing_key.split("."):
                reached = (
                    reached.after_any or reached.after.get(word) or self._follow(reached, word)
                )
        return reached.bindings

    def _begin(self) -> Reached:
        nodes: dict[_Node, None] = {}
        _reach(self._root, nodes)
        return self._keep(nodes)

    def _follow(self, reached: Reached, word: str) -> Reached:
        """Where a word leads that was not met there before."""
        known = any([word in node.words for node in reached.nodes])
        if not known and reached.after_others is not None:
            return reached.after_others
        following = self._keep(_step(reached.nodes, word))
        if known:
            reached.after[word] = following
            self._kept += 1
        else:
            reached.after_others = following
            if not any([node.words for node in reached.nodes]):
                reached.after_any = following
        return following

    def _keep(self, nodes: dict[_Node, None]) -> Reached:
        """What is kept for these nodes."""
        key = tuple(nodes)
        reached = self._reached.get(key)
        if reached is None:
            reached = Reached(key)
            self._kept += 1 + len(key) + len(reached.bindings)
            if self._kept > KEPT_MAX:
                self._forget()
            self._reached[key] = reached
        return reached

    def _forget(self) -> None:
        if self._start is not None or self._reached:
            self._start = None
            self._reached = {}
            self._kept = 0


def words_of(key: str) -> list[str]:
    """The words of a key. `a.` has two, the second one empty; the empty key has none."""
    return key.split(".") if key else []


def _step(reached: Iterable[_Node], word: str) -> dict[_Node, None]:
    following: dict[_Node, None] = {}
    for node in reached:
        if node.loops:
            _reach(node, following)
        child = node.words.get(word)
        if child is not None:
            _reach(child, following)
        if node.one_word is not None:
            _reach(node.one_word, following)
    return following


def _reach(node: _Node, reached: dict[_Node, None]) -> None:
    """Add the node, and those behind it that need no word."""
    following: _Node | None = node
    while following is not None and following not in reached:
        reached[following] = None
        following = following.any_words
