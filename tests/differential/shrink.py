"""Minimises a failing script: delta debugging over its commands, then over the splits of its rounds."""

import dataclasses


def flatten(rounds):
    return [(number, step) for number, one in enumerate(rounds) for step in one.steps]


def rebuild(rounds, kept):
    result = []
    for number, one in enumerate(rounds):
        steps = tuple(step for at, step in kept if at == number)
        if steps:
            result.append(dataclasses.replace(one, steps=steps))
    return result


def shrink(rounds, fails, budget=400):
    """The smallest script found for which `fails(rounds)` still holds, in at most `budget` trials."""
    trials = 0

    def still_fails(candidate):
        nonlocal trials
        trials += 1
        return trials <= budget and bool(candidate) and fails(candidate)

    uncut = [dataclasses.replace(one, cut_seed=None) for one in rounds]
    if still_fails(uncut):
        rounds = uncut
    commands = flatten(rounds)
    pieces = 2
    while len(commands) > 1 and trials < budget:
        size = max(len(commands) // pieces, 1)
        for start in range(0, len(commands), size):
            candidate = commands[:start] + commands[start + size :]
            if still_fails(rebuild(rounds, candidate)):
                commands = candidate
                pieces = max(pieces - 1, 2)
                break
        else:
            if size == 1:
                break
            pieces = min(pieces * 2, len(commands))
    return rebuild(rounds, commands)
