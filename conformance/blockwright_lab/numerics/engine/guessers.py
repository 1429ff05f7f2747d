"""Who guesses tokens ahead without a model of its own; the model's draft head is the worker's."""

from __future__ import annotations

from random import Random

from .task import Task


def random_guess(task: Task, count: int, vocab_size: int) -> list[int]:
    """Guess at random: wrong, mostly."""
    random = Random(f"{task.name} {task.request.num_tokens} {task.turn}")
    return [random.randrange(vocab_size) for _ in range(count)]


def ngram_guess(task: Task, count: int, vocab_size: int) -> list[int]:
    """Guess that what came after the last token before will come again; at random where it never did."""
    tokens = list(task.request.all_token_ids)
    for at in range(len(tokens) - 2, -1, -1):
        if tokens[at] == tokens[-1]:
            run = tokens[at + 1 :]
            return (run * count)[:count]
    return random_guess(task, count, vocab_size)


GUESSERS = {"ngram": ngram_guess, "random": random_guess}
"""By name."""
