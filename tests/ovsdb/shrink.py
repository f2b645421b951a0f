"""Minimises a failing script: fewer steps, then fewer operations, members and requests in what is left."""

import copy
import time

from .script import Burst, Monitor, Script, Transact

BUDGET_S = 40


def shrink(script, problem, fails, budget_s=BUDGET_S):
    """The smallest script found that still fails at its last step, and its problem; `fails(script)` returns a Problem
    or None."""
    deadline = time.monotonic() + budget_s
    best, best_problem = Script(script.schemas, script.steps[: problem.at + 1]), problem

    def attempt(steps):
        nonlocal best, best_problem
        if time.monotonic() > deadline:
            return False
        found = fails(Script(script.schemas, steps))
        if found is None or found.where.endswith("died") != problem.where.endswith("died"):
            return False
        best, best_problem = Script(script.schemas, steps[: found.at + 1]), found
        return True

    if not attempt(best.steps):
        return best, best_problem
    size = max(len(best.steps) // 2, 1)
    while time.monotonic() < deadline:
        start, removed = 0, False
        while start < len(best.steps):
            steps = best.steps[:start] + best.steps[start + size :]
            if steps and attempt(steps):
                removed = True
            else:
                start += size
        if size == 1 and not removed:
            break
        size = max(size // 2, 1)
    changed = True
    while changed and time.monotonic() < deadline:
        changed = any(attempt(steps) for steps in smaller(best.steps))
    return best, best_problem


def smaller(steps):
    """Scripts with one thing fewer inside a step."""
    for number, step in enumerate(steps):
        for change in inside(step):
            yield steps[:number] + [change] + steps[number + 1 :]


def inside(step):
    if isinstance(step, Burst):
        for at in range(len(step.transacts)):
            if len(step.transacts) > 1:
                yield Burst(step.transacts[:at] + step.transacts[at + 1 :])
        for at, one in enumerate(step.transacts):
            for change in inside(one):
                yield Burst(step.transacts[:at] + [change] + step.transacts[at + 1 :])
    if isinstance(step, Transact):
        for at in range(len(step.ops)):
            if len(step.ops) > 1:
                yield with_ops(step, step.ops[:at] + step.ops[at + 1 :])
        for at, op in enumerate(step.ops):
            if not isinstance(op.json, dict):
                continue
            for member in ("row", "where", "mutations", "columns"):
                content = op.json.get(member)
                if isinstance(content, dict) and content:
                    parts = [{k: v for k, v in content.items() if k != key} for key in content]
                elif isinstance(content, list) and len(content) > 1:
                    parts = [content[:n] + content[n + 1 :] for n in range(len(content))]
                else:
                    continue
                for part in parts:
                    new = copy.copy(op)
                    new.json = dict(op.json, **{member: part})
                    yield with_ops(step, step.ops[:at] + [new] + step.ops[at + 1 :])
    if isinstance(step, Monitor) and isinstance(step.requests, dict) and len(step.requests) > 1:
        for table in step.requests:
            new = copy.copy(step)
            new.requests = {key: value for key, value in step.requests.items() if key != table}
            yield new


def with_ops(step, ops):
    new = copy.copy(step)
    new.ops = ops
    return new
