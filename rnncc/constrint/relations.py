"""Propagators of relations: linear comparisons, congruences, tables, and their combinations by and / or."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from operator import contains

from rnncc.constrint import domain as sets
from rnncc.constrint.store import ANY, BOUNDS, FIXED, HIGH, LOW, Condition, Contradiction, Propagator, Store

Terms = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class AtMost(Condition):
    """`Σ coefficient · variable + constant <= 0`; terms are (variable, coefficient), no variable twice."""

    terms: Terms
    constant: int

    def watches(self) -> tuple[tuple[int, int], ...]:
        return tuple((variable, LOW if factor > 0 else HIGH) for variable, factor in self.terms)

    def propagate(self, store: Store) -> bool:
        domains = store.domains
        least = self.constant
        for variable, factor in self.terms:
            least += factor * domains[variable][0 if factor > 0 else -1]
        if least > 0:
            raise Contradiction
        for variable, factor in self.terms:
            domain = domains[variable]
            # The others at their best leave this much for the variable to move from its own best.
            if factor > 0:
                if factor * (domain[-1] - domain[0]) > -least:
                    store.assign(variable, sets.clip(domain, domain[0], domain[0] + -least // factor))
            elif factor * (domain[0] - domain[-1]) > -least:
                store.assign(variable, sets.clip(domain, domain[-1] - -least // -factor, domain[-1]))
        return True

    def status(self, store: Store) -> bool | None:
        least, most = _span(self.terms, self.constant, store)
        return False if least > 0 else True if most <= 0 else None


@dataclass(frozen=True, slots=True)
class Equal(Condition):
    """`Σ coefficient · variable + constant == 0`, by bounds."""

    terms: Terms
    constant: int

    def watches(self) -> tuple[tuple[int, int], ...]:
        return tuple((variable, BOUNDS) for variable, _ in self.terms)

    def propagate(self, store: Store) -> bool:
        domains = store.domains
        least = most = self.constant
        for variable, factor in self.terms:
            domain = domains[variable]
            if factor > 0:
                least += factor * domain[0]
                most += factor * domain[-1]
            else:
                least += factor * domain[-1]
                most += factor * domain[0]
        if least > 0 or most < 0:
            raise Contradiction
        for variable, factor in self.terms:
            domain = domains[variable]
            low, high = domain[0], domain[-1]
            room = (high - low) * (factor if factor > 0 else -factor)
            if room > -least or room > most:
                if factor > 0:
                    store.clip(variable, high - most // factor, low + -least // factor)
                else:
                    store.clip(variable, high - -least // -factor, low + most // -factor)
        # While two variables are open, a second look at bounds alone is not worth it before another propagator brings
        # something new. While one is open, this must look again at once: it may have fixed the others itself just now,
        # and then nothing else ever wakes it, though the last one may have a hole where its value should be.
        is_open = False
        for variable, _ in self.terms:
            if len(domains[variable]) > 1:
                if is_open:
                    return True
                is_open = True
        return False

    def status(self, store: Store) -> bool | None:
        least, most = _span(self.terms, self.constant, store)
        if least > 0 or most < 0:
            return False
        if least == most:
            return True
        if len(self.terms) == 1:
            ((variable, factor),) = self.terms
            if self.constant % factor or -self.constant // factor not in store.domains[variable]:
                return False
        return None


@dataclass(frozen=True, slots=True)
class Same(Condition):
    """`one == other`, holes included."""

    one: int
    other: int

    def watches(self) -> tuple[tuple[int, int], ...]:
        return ((self.one, ANY), (self.other, ANY))

    def propagate(self, store: Store) -> bool:
        store.restrict(self.one, store.domains[self.other])
        store.restrict(self.other, store.domains[self.one])
        return True

    def status(self, store: Store) -> bool | None:
        one, other = store.domains[self.one], store.domains[self.other]
        if one[0] > other[-1] or other[0] > one[-1]:
            return False
        return True if len(one) == len(other) == 1 else None


@dataclass(frozen=True, slots=True)
class Differ(Condition):
    """`Σ coefficient · variable + constant != 0`."""

    terms: Terms
    constant: int

    def watches(self) -> tuple[tuple[int, int], ...]:
        return tuple((variable, FIXED) for variable, _ in self.terms)

    def propagate(self, store: Store) -> bool:
        total, open_variable, open_factor = self.constant, -1, 0
        for variable, factor in self.terms:
            domain = store.domains[variable]
            if len(domain) == 1:
                total += factor * domain[0]
            elif open_factor:
                return True
            else:
                open_variable, open_factor = variable, factor
        if open_factor:
            if total % open_factor == 0:
                store.assign(open_variable, sets.without(store.domains[open_variable], -total // open_factor))
        elif total == 0:
            raise Contradiction
        return True

    def status(self, store: Store) -> bool | None:
        equal = Equal(self.terms, self.constant).status(store)
        return None if equal is None else not equal


def _span(terms: Terms, constant: int, store: Store) -> tuple[int, int]:
    """The least and the greatest value of a linear form over the domains."""
    least = most = constant
    for variable, factor in terms:
        domain = store.domains[variable]
        ends = (factor * domain[0], factor * domain[-1])
        least += min(ends)
        most += max(ends)
    return least, most


@dataclass(frozen=True, slots=True)
class Congruence(Propagator):
    """What `Σ coefficient · variable + constant == 0` says modulo the strides of its variables.

    From `threads == 32 * warps` follows that threads are multiples of 32. Runs once, before the search: later the
    strides hardly change.
    """

    terms: Terms
    constant: int

    def watches(self) -> tuple[tuple[int, int], ...]:
        return tuple((variable, 0) for variable, _ in self.terms)

    def propagate(self, store: Store) -> bool:
        strides = [factor * sets.stride(store.domains[variable]) for variable, factor in self.terms]
        anchor = self.constant + sum(factor * store.domains[variable][0] for variable, factor in self.terms)
        for position, (variable, factor) in enumerate(self.terms):
            # factor · variable == own - anchor modulo the strides of the others.
            modulus = gcd(*strides[:position], *strides[position + 1 :])
            right = factor * store.domains[variable][0] - anchor
            common = gcd(factor, modulus)
            if right % common:
                raise Contradiction
            modulus //= common
            if modulus > 1:
                residue = right // common * pow(factor // common, -1, modulus) % modulus
                store.assign(variable, sets.congruent(store.domains[variable], residue, modulus))
        return True


class TableRows(Condition):
    """The variables together take the values of one of the rows. Exact: a value stays while a row supports it.

    Sets of rows are integers, a bit a row, so a run costs one `and` a variable and one `or` a value of the table.
    """

    __slots__ = ("columns", "everything", "variables")

    def __init__(self, variables: tuple[int, ...], rows: tuple[tuple[int, ...], ...]) -> None:
        # A variable that stands there twice has one value.
        first = {variable: variables.index(variable) for variable in variables}
        if len(first) < len(variables):
            rows = tuple(
                row for row in rows if all(row[first[v]] == value for v, value in zip(variables, row, strict=True))
            )
        self.variables = tuple(first)
        self.everything = (1 << len(rows)) - 1
        self.columns = [_Column(tuple(row[position] for row in rows)) for position in first.values()]

    def watches(self) -> tuple[tuple[int, int], ...]:
        return tuple((variable, ANY) for variable in self.variables)

    def _alive(self, store: Store) -> int:
        """The rows whose every value is still possible."""
        alive = self.everything
        for variable, column in zip(self.variables, self.columns, strict=True):
            alive &= column.rows_of(store.domains[variable])
        return alive

    def propagate(self, store: Store) -> bool:
        alive = self._alive(store)
        if not alive:
            raise Contradiction
        for variable, column in zip(self.variables, self.columns, strict=True):
            domain = store.domains[variable]
            if len(domain) > 1:
                store.assign(variable, column.values_of(alive))
        return True

    def status(self, store: Store) -> bool | None:
        alive = self._alive(store)
        if not alive:
            return False
        return True if all(len(store.domains[variable]) == 1 for variable in self.variables) else None


class _Column:
    """The values of one variable of a table. A search asks for few different sets of them, again and again."""

    __slots__ = ("_rows", "_rows_of", "_values_of")

    def __init__(self, values: tuple[int, ...]) -> None:
        rows: dict[int, int] = {}
        for bit, value in enumerate(values):
            rows[value] = rows.get(value, 0) | 1 << bit
        self._rows = sorted(rows.items())
        self._rows_of: dict[sets.Domain, int] = {}
        self._values_of: dict[int, sets.Domain] = {}

    def rows_of(self, domain: sets.Domain) -> int:
        """The rows whose value is in a domain."""
        found = self._rows_of.get(domain)
        if found is None:
            found = 0
            for value, rows in self._rows:
                if value in domain:
                    found |= rows
            self._rows_of[domain] = found
        return found

    def values_of(self, alive: int) -> sets.Domain:
        """The values that some of the rows have."""
        found = self._values_of.get(alive)
        if found is None:
            found = self._values_of[alive] = tuple(value for value, rows in self._rows if rows & alive)
        return found


class NoTableRow(Condition):
    """The variables together take the values of none of the rows."""

    __slots__ = ("rows", "variables")

    def __init__(self, variables: tuple[int, ...], rows: tuple[tuple[int, ...], ...]) -> None:
        self.variables, self.rows = variables, tuple(sorted(rows))

    def watches(self) -> tuple[tuple[int, int], ...]:
        return tuple((variable, FIXED) for variable in self.variables)

    def propagate(self, store: Store) -> bool:
        domains = [store.domains[variable] for variable in self.variables]
        still_open = [position for position, domain in enumerate(domains) if len(domain) > 1]
        if len(still_open) > 1:
            return True
        for row in self.rows:
            if all(len(domain) > 1 or domain[0] == value for domain, value in zip(domains, row, strict=True)):
                if not still_open:
                    raise Contradiction
                variable = self.variables[still_open[0]]
                store.assign(variable, sets.without(store.domains[variable], row[still_open[0]]))
        return True

    def status(self, store: Store) -> bool | None:
        domains = [store.domains[variable] for variable in self.variables]
        if not any(all(map(contains, domains, row)) for row in self.rows):
            return True
        return False if all(len(domain) == 1 for domain in domains) else None


@dataclass(frozen=True, slots=True)
class Both(Condition):
    """All of the parts; the empty one is true."""

    parts: tuple[Condition, ...]

    def watches(self) -> tuple[tuple[int, int], ...]:
        return tuple((variable, ANY) for part in self.parts for variable, _ in part.watches())

    def propagate(self, store: Store) -> bool:
        for part in self.parts:
            part.propagate(store)
        return False

    def status(self, store: Store) -> bool | None:
        found: bool | None = True
        for part in self.parts:
            status = part.status(store)
            if status is False:
                return False
            found = found and status
        return found


@dataclass(frozen=True, slots=True)
class Either(Condition):
    """At least one of the parts: once all but one are refuted, the last must hold. The empty one is false."""

    parts: tuple[Condition, ...]

    def watches(self) -> tuple[tuple[int, int], ...]:
        return tuple((variable, ANY) for part in self.parts for variable, _ in part.watches())

    def propagate(self, store: Store) -> bool:
        candidate: Condition | None = None
        for part in self.parts:
            status = part.status(store)
            if status is True:
                return True
            if status is None:
                if candidate is not None:
                    return True
                candidate = part
        if candidate is None:
            raise Contradiction
        return candidate.propagate(store)

    def status(self, store: Store) -> bool | None:
        found: bool | None = False
        for part in self.parts:
            status = part.status(store)
            if status is True:
                return True
            if status is None:
                found = None
        return found
