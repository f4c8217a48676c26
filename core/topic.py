"""Topic bindings in a trie of the words of their keys.

A routing key and a binding key are words separated by dots; the empty key has no words. In a
binding key the word `*` stands for exactly one word, which may be empty, and the word `#` for any
number of them; every other word stands for itself (amqp_semantics.md section 3).

Matching walks the routing key once and keeps the set of nodes that its words so far lead to. What
a publish costs depends on those nodes and not on how many bindings there are, and patterns with
many `#` cannot make it explode: a node is in the set once, however many ways lead to it.
"""

from __future__ import annotations

from warren.core.binding import Binding

ONE_WORD = "*"
ANY_WORDS = "#"


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


class TopicTrie:
    """Bindings by the pattern in their routing key."""

    def __init__(self) -> None:
        self._root = _Node(loops=False)

    def __bool__(self) -> bool:
        return not self._root.is_empty()

    def add(self, binding: Binding) -> None:
        node = self._root
        for word in words_of(binding.routing_key):
            node = node.grow(word)
        node.bindings[binding] = None

    def remove(self, binding: Binding) -> None:
        """Forget a binding, and the nodes that lead to no other. Nothing happens without it."""
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

    def match(self, routing_key: str) -> list[Binding]:
        """The bindings whose pattern the routing key fits, each once."""
        reached: dict[_Node, None] = {}
        _reach(self._root, reached)
        for word in words_of(routing_key):
            reached = _step(reached, word)
        return [binding for node in reached for binding in node.bindings]


def words_of(key: str) -> list[str]:
    """The words of a key. `a.` has two, the second one empty; the empty key has none."""
    return key.split(".") if key else []


def _step(reached: dict[_Node, None], word: str) -> dict[_Node, None]:
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
