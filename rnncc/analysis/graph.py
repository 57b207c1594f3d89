"""Order and strongly connected components of graphs of names, without recursion and independent of hashing."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence


def components(graph: Mapping[str, Sequence[str]]) -> list[list[str]]:
    """The strongly connected components, each after the ones it points to (Tarjan); names in the graph's order."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    on_stack: set[str] = set()
    found: list[list[str]] = []
    order = {name: position for position, name in enumerate(graph)}
    for root in graph:
        if root in index:
            continue
        index[root] = low[root] = len(index)
        stack.append(root)
        on_stack.add(root)
        work = [(root, iter(graph[root]))]
        while work:
            node, pointed = work[-1]
            for target in pointed:
                if target not in graph:
                    continue
                if target not in index:
                    index[target] = low[target] = len(index)
                    stack.append(target)
                    on_stack.add(target)
                    work.append((target, iter(graph[target])))
                    break
                if target in on_stack:
                    low[node] = min(low[node], index[target])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    component = [stack.pop()]
                    while component[-1] != node:
                        component.append(stack.pop())
                    on_stack.difference_update(component)
                    found.append(sorted(component, key=order.__getitem__))
    return found


def sort(graph: Mapping[str, Sequence[str]]) -> list[str] | None:
    """The names, each after those it points to and otherwise in the graph's order; None where there is a cycle."""
    position = {name: number for number, name in enumerate(graph)}
    listed = list(graph)
    waiting = {name: len({target for target in graph[name] if target in graph}) for name in graph}
    readers: dict[str, list[str]] = {name: [] for name in graph}
    for name in graph:
        for target in dict.fromkeys(graph[name]):
            if target in graph:
                readers[target].append(name)
    ready = [position[name] for name in graph if not waiting[name]]
    heapq.heapify(ready)
    result: list[str] = []
    while ready:
        name = listed[heapq.heappop(ready)]
        result.append(name)
        for reader in readers[name]:
            waiting[reader] -= 1
            if not waiting[reader]:
                heapq.heappush(ready, position[reader])
    return result if len(result) == len(listed) else None


def cycle(graph: Mapping[str, Sequence[str]], component: Sequence[str]) -> list[str]:
    """A shortest way from the first name of a component back to itself, that name at both ends."""
    inside, start = set(component), component[0]
    came: dict[str, str] = {}
    queue = [start]
    for node in queue:
        for target in graph[node]:
            if target == start:
                path = [node]
                while path[-1] != start:
                    path.append(came[path[-1]])
                return [*reversed(path), start]
            if target in inside and target not in came:
                came[target] = node
                queue.append(target)
    return [start]
