"""The form of a step without products, and what it does to the carries.

Every value of the step is an affine map of the carries or is not; the slopes and offsets of one that is have names and
statements of their own, so that they do not grow with the text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from rnncc.analysis.affine import Affine, form_of, free, in_names, own
from rnncc.ir.cell import ACTIVE
from rnncc.ir.dim import ONE, Dim
from rnncc.ir.expr import Apply, Expr, Ref, references
from rnncc.ir.fused import FusedEdge, FusedRead, FusedRow, FusedVector, FusedWrite
from rnncc.ir.lowered import NoForm, Unfit
from rnncc.ir.scan import AffineMap, ScanLoop, Tangent
from rnncc.ir.step import Edge, MatrixStage, Read, RowStage, Statement, Step, Table, Vector
from rnncc.language.operators import OPERATORS

# A map of n carries has n² + n numbers, and joining two takes n³ + n² products.
MOST_CARRIES = 3
# Read, or written: as many as the bits of a word (lanes.cuh).
MOST_TENSORS = 32
# The values of a step that stay in registers between its map and its run.
MOST_KEPT = 4


def scan(step: Step) -> ScanLoop | NoForm:
    """The form without products, or why there is none."""
    try:
        return _loop(step)
    except Unfit as reason:
        return NoForm(str(reason))


def _loop(step: Step) -> ScanLoop:
    width = _only_width(step)
    statements = tuple(statement for stage in step.tiles for statement in stage.statements)
    edges = tuple(_edges(step, width))
    if not edges:
        raise Unfit("nothing lives from step to step")
    reads, rows, vectors = _reads(step, {name for each in statements for name in references(each.expr)}, width)
    writes = _once(
        FusedWrite(name, place, 0, destination=index)
        for name in step.stored
        for index, place in enumerate(step.places(name))
    )
    if max(len(reads), len(writes)) > MOST_TENSORS:
        raise Unfit(f"a step reads or writes more than {MOST_TENSORS} tensors")
    affine = _Mapper(edges).map(statements) if len(edges) <= MOST_CARRIES else None
    return ScanLoop(
        reads,
        rows,
        vectors,
        step.constants,
        edges,
        statements,
        tuple(write for write in writes if write.place is not None),
        tuple(write.value for write in writes if write.place is None),
        affine,
        _kept(affine, statements) if affine else (),
        step.masked,
        width,
    )


def _only_width(step: Step) -> Dim:
    """The width of all values that a step makes, where every unit of a batch entry is alone."""
    for stage in step.stages:
        if isinstance(stage, MatrixStage):
            raise Unfit("a step has a matrix that changes with the step")
        if isinstance(stage, RowStage):
            raise Unfit(f"a step takes the {stage.operator.value} of a row")
    if any(stage.products for stage in step.tiles):
        raise Unfit("a step has products")
    if step.outers:
        raise Unfit("products are taken over all steps")
    width = step.tiles[0].width
    if any(stage.width != width or stage.parts != 1 for stage in step.tiles):
        raise Unfit("values of a step have several widths")
    return width


def _edges(step: Step, width: Dim) -> Iterator[FusedEdge]:
    for edge, last in step.carried:
        if edge.width != width or edge.ahead:
            raise Unfit(f"{edge.name} has another width than the others")
        yield FusedEdge(edge.name, edge.link, edge.place, last)


def _reads(
    step: Step, used: set[str], width: Dim
) -> tuple[tuple[FusedRead, ...], tuple[FusedRow, ...], tuple[FusedVector, ...]]:
    """The tensors that the names in `used` stand for, without the mask of active steps, which kernels know
    themselves."""
    reads: list[FusedRead] = []
    rows: list[FusedRow] = []
    vectors: list[FusedVector] = []
    for name in step.in_memory():
        if name not in used or name == ACTIVE:
            continue
        match step.inputs.get(name):
            case Read(_, own, place) if own == width:
                reads.append(FusedRead(name, place))
            case Read(_, own, place) if own == ONE:
                rows.append(FusedRow(name, place))
            case Edge(_, own, link, place) if isinstance(linked := step.inputs.get(link), Read) and own == width:
                reads.append(FusedRead(name, linked.place, place))
            case Vector(_, own, place) if own in (width, ONE):
                vectors.append(FusedVector(name, place, own == ONE))
            case None if name not in step.views:
                pass
            case Edge(link=link) if link not in step.inputs:
                pass
            case _:
                raise Unfit(f"{name} has another width than the others")
    return tuple(reads), tuple(rows), tuple(vectors)


def _once(given: Iterable[FusedWrite]) -> tuple[FusedWrite, ...]:
    """Without what is kept as it is returned: one tensor is both, or there is but one of them (parameter.h)."""
    writes = tuple(given)
    returned = {write.value for write in writes if write.place and write.place.table is Table.SEQUENCES}
    return tuple(
        write
        for write in writes
        if not (write.value in returned and write.place and write.place.table is Table.ROUNDED)
    )


def with_tangent(forward: ScanLoop | NoForm, backward: ScanLoop | NoForm) -> ScanLoop | NoForm:
    """A forward walk with its tangent: what the backward scan multiplies carries by, transposed. It reads saved states
    where the walk has just made them."""
    if isinstance(forward, NoForm) or isinstance(backward, NoForm) or forward.map or forward.totals or not backward.map:
        return forward
    places = {edge.name: index for index, edge in enumerate(backward.edges)}
    names = [f"d_{edge.link}__carry" for edge in forward.edges]
    if places.keys() != set(names):
        return forward
    order = [places[name] for name in names]
    rows = [backward.map.matrix[j] for j in order]
    matrix = tuple(tuple(row[i] for row in rows) for i in order)
    made = {statement.target for statement in forward.statements}
    wanted = {name for row in matrix for entry in row if entry for name in references(entry)}
    extra: list[Statement] = []
    for statement in reversed(backward.map.statements):
        if statement.target in wanted and statement.target not in made:
            wanted.update(references(statement.expr))
            extra.append(statement)
    groups = (forward.reads, forward.rows, forward.vectors, forward.edges)
    known = made | {item.name for group in groups for item in group} | {*forward.constants}
    known |= {ACTIVE, *(statement.target for statement in extra)}
    if not wanted <= known:
        return forward
    return replace(forward, tangent=Tangent(tuple(reversed(extra)), matrix))


def _kept(affine: AffineMap, statements: tuple[Statement, ...]) -> tuple[str, ...]:
    """What both the map of a step and its run need, and takes long."""
    own = set(statements)
    found = [s.target for s in affine.statements if s in own and not _is_cheap(s.expr)]
    return tuple(found) if len(found) <= MOST_KEPT else ()


def _is_cheap(expr: Expr) -> bool:
    return not isinstance(expr, Apply) or (OPERATORS[expr.operator].cheap and all(map(_is_cheap, expr.arguments)))


class _Mapper:
    def __init__(self, edges: tuple[FusedEdge, ...]) -> None:
        self.edges = edges
        # None: not affine.
        self.forms: dict[str, Affine | None] = {edge.name: own(edge.name) for edge in edges}
        self.made: list[Statement] = []

    def map(self, statements: tuple[Statement, ...]) -> AffineMap | None:
        for statement in statements:
            self.forms[statement.target] = self._named(statement)
        forms = [self.forms[edge.link] for edge in self.edges]
        affine = [form for form in forms if form is not None]
        if len(affine) < len(forms):
            return None
        slopes = [dict(form.slopes) for form in affine]
        return AffineMap(
            tuple(self.made),
            tuple(tuple(row.get(edge.name) for edge in self.edges) for row in slopes),
            tuple(form.offset for form in affine),
        )

    def _named(self, statement: Statement) -> Affine | None:
        """The form of a statement's value, in names."""
        form = form_of(statement.expr, self.forms)
        if form is None:
            return None
        if not form.slopes:
            # Not the statement's own text: carries may be in it that cancel.
            self.made.append(Statement(statement.target, form.offset, statement.line))
            return free(statement.target)
        return in_names(form, statement.target, lambda name, expr: self._name(name, expr, statement.line))

    def _name(self, name: str, expr: Expr, line: int) -> Expr:
        self.made.append(Statement(name, expr, line))
        return Ref(name)
