"""Equations to nodes: every product and every function across units becomes a node of its own with a named result.

Equal products, row functions and operands are computed once for the whole cell.
"""

from __future__ import annotations

from typing import assert_never

from rnncc.ir import dim as dims
from rnncc.ir.cell import Contraction, Delay, Pointwise, RowOp
from rnncc.ir.dim import HEADS, ONE, Dim
from rnncc.ir.expr import Apply, Const, Expr, Ref, apply
from rnncc.ir.row_operator import RowOperator
from rnncc.ir.term import (
    Argument,
    Bad,
    Equation,
    Eye,
    Filled,
    Num,
    OfMatrix,
    Op,
    PerHead,
    Product,
    Row,
    Share,
    Surrogate,
    Term,
    Transposed,
    Unflatten,
    Val,
    names,
    walk,
)
from rnncc.ir.typed import Shape, Typed, delay_states
from rnncc.language.diagnostics import InternalError
from rnncc.language.report import Report
from rnncc.language.source import NOWHERE, Span
from rnncc.stages.partition.flat import FlatCell, live
from rnncc.stages.partition.grids import Grids
from rnncc.stages.partition.nodes import Nodes
from rnncc.stages.partition.row_functions import RowFunctions


class _Flattener:
    def __init__(self, typed: Typed, report: Report) -> None:
        self.typed, self.report = typed, report
        self.nodes = Nodes(typed)
        self.shapes = self.nodes.shapes
        self.functions = RowFunctions(typed, self.nodes)
        self.products: dict[tuple[str, str], str] = {}
        self.states = {state.name for state in typed.states}
        self.members = {member.name: member for member in typed.members}
        # What shapes the program is compiled in, also where it serves as a number.
        self.compiled_in = {constant.name: constant.value for constant in typed.constants if constant.shaping}
        self.aliases = self.find_aliases()
        self.terms = {equation.target: equation.term for equation in typed.equations}
        self.grids = Grids(self)
        # Values of parameters and numbers alone.
        self.fixed = {param.name for param in typed.params} | {*self.members}
        self.fixed |= {constant.name for constant in typed.constants}
        for equation in typed.equations:
            if self.of_parameters(equation.term):
                self.fixed.add(equation.target)
        # What `Argument` stands for, in the slopes of surrogates that are being flattened, the innermost last.
        self.steps: list[Expr] = []

    def run(self) -> FlatCell:
        self.delays()
        for equation in self.typed.equations:
            self.nodes.target, self.nodes.span = equation.target, equation.span
            if equation.target not in self.aliases:
                self.equation(equation)
        spans = {state.name: state.span for state in self.typed.states}
        for state in self.typed.state_delays:
            source = state
            for delay in delay_states(self.typed, state):
                self.nodes.define(Pointwise(delay, Ref(f"{source}__1"), spans[state]))
                source = delay
        return live(FlatCell(self.typed, self.nodes.made, self.shapes))

    def delays(self) -> None:
        """The nodes of older inputs, and of older values that inputs make. All names of a value share them."""
        older = {
            f"{name}__{step}": (name, step)
            for name, steps in self.typed.value_delays.items()
            for step in range(1, steps + 1)
        }
        depth: dict[str, int] = {}
        for target in older:
            root, back = target, 0
            while root in older or root in self.aliases:
                root, step = older.get(root) or (self.aliases[root], 0)
                back += step
            depth[root] = max(depth.get(root, 0), back)
            if target != f"{root}__{back}":
                self.aliases[target] = f"{root}__{back}"
        spans = {equation.target: equation.target_span for equation in self.typed.equations}
        for root in (*(given.name for given in self.typed.inputs), *spans):
            for step in range(1, depth.get(root, 0) + 1):
                self.shapes[f"{root}__{step}"] = self.shapes[root]
                operand = root if step == 1 else f"{root}__{step - 1}"
                self.nodes.define(Delay(f"{root}__{step}", operand, spans.get(root, NOWHERE)))

    def find_aliases(self) -> dict[str, str]:
        """Targets that only rename a value of the same width (`s[0] = h[t-1]`)."""
        aliases: dict[str, str] = {}
        for equation in self.typed.equations:
            target, term = equation.target, equation.term
            if not isinstance(term, Val) or target in self.states or target == self.typed.output:
                continue
            if self.shapes[target].width == self.shapes[term.name].width:
                aliases[target] = term.name
        return aliases

    def equation(self, equation: Equation) -> None:
        """The node that defines the target, after the nodes it needs."""
        target, term = equation.target, equation.term
        width = self.shapes[target].width
        if self.shapes[target].grid is not None:
            self.nodes.define(Pointwise(target, self.grids.expression(term), equation.span))
            return
        if self.shapes[target].is_matrix:
            self.nodes.define(Pointwise(target, self.matrix_expression(term, term), equation.span))
            return
        # What a state takes from inputs alone is computed before its loop: `merge` joins the two where it is not so.
        is_state = target in self.states
        if isinstance(term, Product) and not is_state and self.is_contraction(term):
            key = (self.matrix(term.matrix), self.operand(term.operand))
            if key not in self.products and self.shapes[key[0]].width == width:
                self.products[key] = target
                self.nodes.define(Contraction(target, *key, span=equation.span))
                return
        if isinstance(term, Share):
            self.share(term, equation)
            return
        if isinstance(term, Row) and not is_state and not any(map(self.grids.is_grid, term.arguments)):
            self.nodes.define(self.functions.node(term, self.operands(term), target))
            return
        self.nodes.define(Pointwise(target, self.expression(term), equation.span))

    def is_contraction(self, term: Product) -> bool:
        """Whether a product is one with a matrix of parameters that is not diagonal."""
        return not self.grids.is_grid(term.matrix) and self.diagonal(term.matrix) is None

    def share(self, term: Share, equation: Equation) -> None:
        operand = self.operand(term.operand)
        if len(term.targets) == 1:
            self.nodes.define(Pointwise(equation.target, Ref(operand), equation.span))
            return
        offset = dims.constant(0)
        for name in term.targets[: term.index]:
            offset = dims.add(offset, self.shapes[name].width)
        self.nodes.define(RowOp(equation.target, RowOperator.SLICE, (operand,), offset, span=equation.span))

    def actual(self, name: str) -> str:
        """The value behind aliases."""
        while name in self.aliases:
            name = self.aliases[name]
        return name

    # Vectors.

    def expression(self, term: Term) -> Expr:
        """A vector term as an elementwise expression over named values."""
        match term:
            case Num(value):
                return Const(value)
            case Val(name):
                return self.value(name)
            case Op(operator, arguments):
                return Apply(operator, tuple(self.expression(argument) for argument in arguments))
            case Product(matrix, operand) if self.grids.is_grid(matrix):
                return self.grids.times_vector(matrix, operand)
            case Product(matrix, operand):
                diagonal = self.diagonal(matrix)
                if diagonal is not None:
                    return apply("mul", Ref(self.operand(diagonal)), self.expression(operand))
                return Ref(self.product(term))
            case OfMatrix(function, matrix, axis) if self.grids.is_reduction(term):
                return self.grids.reduction(function, matrix, axis)
            case OfMatrix("norm" as function, matrix) | Row("logsumexp" as function, (matrix,)) if self.grids.is_grid(
                matrix
            ):
                return self.grids.reduction(function, matrix)
            case OfMatrix("diag", matrix, _, span) if self.grids.is_grid(matrix):
                return self.grids.diagonal_of(matrix, span)
            case OfMatrix("norm", matrix, _, span):
                norm = apply("norm", Ref(self.matrix(matrix)))
                return Ref(self.nodes.named(norm, Shape(HEADS), span))
            case Surrogate():
                return self.surrogate(term, self.expression(term.operand), Shape(ONE))
            case Argument():
                return self.steps[-1]
            case Row():
                return Ref(self.functions.value(term, self.operands(term)))
            case Filled(function, dim):
                return Ref(self.functions.filled(function, dim))
            case PerHead(inner):
                return Ref(self.functions.per_head(term, self.operand(inner)))
            case Share() | Transposed() | OfMatrix() | Eye() | Unflatten() | Bad():
                raise InternalError(f"a {type(term).__name__} inside an expression")
            case _:
                assert_never(term)

    def surrogate(self, term: Surrogate, operand: Expr, shape: Shape) -> Apply:
        """A step function with a derivative of its own. Its operand, which the derivative reads too, has a name."""
        if isinstance(operand, Apply):
            operand = Ref(self.nodes.named(operand, shape if shape.is_matrix else None))
        self.steps.append(operand)
        slope = self.expression(term.slope)
        self.steps.pop()
        return apply(term.surrogate, operand, apply(term.function, operand), slope)

    def value(self, name: str) -> Expr:
        name = self.actual(name)
        return Const(float(self.compiled_in[name])) if name in self.compiled_in else Ref(name)

    def of_parameters(self, term: Term) -> bool:
        """Whether parameters and numbers alone make a value."""
        return all(name in self.fixed for name in names(term))

    def shape_of(self, name: str) -> Shape:
        """The shape of a value."""
        return self.shapes[self.actual(name)]

    def operand(self, term: Term) -> str:
        """The name of a vector, which is a value's or stands for an expression. A matrix that changes is one, too."""
        if self.grids.is_grid(term):
            return self.grids.named(term)
        return self.nodes.named(self.expression(term))

    def operands(self, term: Row) -> tuple[str, ...]:
        return tuple(self.operand(argument) for argument in term.arguments)

    def product(self, term: Product) -> str:
        """The value of `matrix @ operand`."""
        key = (self.matrix(term.matrix), self.operand(term.operand))
        if key not in self.products:
            node = Contraction(self.nodes.name(self.suffix(key[0])), *key, span=term.span)
            self.products[key] = self.nodes.temporary(node, Shape(self.shapes[key[0]].width))
        return self.products[key]

    def suffix(self, matrix: str) -> str:
        """What names a product: the group of the target's own member, else the matrix."""
        member = self.members.get(matrix)
        if member is None:
            return "" if "__" in matrix else matrix
        return member.written if member.target == self.nodes.target else matrix

    # Matrices.

    def diagonal(self, term: Term) -> Term | None:
        """The vector on the diagonal of a diagonal matrix: of a parameter, of `diag(v)`, or of a name for that."""
        match term:
            case OfMatrix("diag", vector):
                return vector
            case Val(name) if self.shapes[self.actual(name)].kind == "diag":
                return term
            case Val(name) if (named := self.terms.get(self.actual(name))) is not None:
                return self.diagonal(named)
            case _:
                return None

    def matrix(self, term: Term) -> str:
        """The name of a matrix, which is a member, a param, or a value of the prologue."""
        if isinstance(term, Val) and self.diagonal(term) is None:
            return self.actual(term.name)
        return self.nodes.named(self.matrix_expression(term, term), self.matrix_shape(term), term.span)

    def matrix_expression(self, term: Term, root: Term) -> Expr:
        """Matrix arithmetic as an expression over whole matrices."""
        diagonal = self.diagonal(term)
        if diagonal is not None:
            return apply("diag", Ref(self.operand(diagonal)))
        match term:
            case Val(name) if self.is_norm(name):
                return self.matrix_expression(self.terms[self.actual(name)], root)
            case Op(operator, arguments):
                return Apply(operator, tuple(self.matrix_expression(argument, root) for argument in arguments))
            case Surrogate(_, operand):
                return self.surrogate(term, self.matrix_expression(operand, root), self.matrix_shape(operand))
            case Transposed(matrix):
                return apply("transpose", self.matrix_expression(matrix, root))
            case OfMatrix(_, matrix):
                moved = (Const(dims.as_int(term.places) or 0),) if term.function == "roll" else ()
                fill = (self.expression(each) for each in term.fill)
                return apply(term.operator, self.matrix_expression(matrix, root), *moved, *fill)
            case Product(left, right) if self.matrix_shape(right).is_matrix:
                rows, columns = self.diagonal(left), self.diagonal(right)
                if rows is not None:
                    return apply("scale_rows", Ref(self.operand(rows)), self.matrix_expression(right, root))
                if columns is not None:
                    return apply("scale_columns", self.matrix_expression(left, root), Ref(self.operand(columns)))
                return apply("matmul", self.matrix_expression(left, root), self.matrix_expression(right, root))
            case Eye(dim, span):
                return self.eye(dim, span, root)
            case _:
                return self.expression(term)

    def is_norm(self, name: str) -> bool:
        """Whether a value is made of norms. In matrix arithmetic these are taken again: a matrix without heads has one
        norm, and a value has one number per head."""
        term = self.terms.get(self.actual(name))
        narrow = self.shapes[self.actual(name)].width == HEADS
        return narrow and term is not None and any(isinstance(part, OfMatrix) for part in walk(term))

    def eye(self, dim: Dim, span: Span, root: Term) -> Expr:
        """`eye` takes its shape (and blocks) from a matrix beside it."""
        square = Shape(dim, dim, "matrix")
        beside = [
            part
            for part in walk(root)
            if self.matrix_shape(part) == square and not any(isinstance(inner, Eye) for inner in walk(part))
        ]
        if beside:
            smallest = min(beside, key=lambda part: len(list(walk(part))))
            return apply("eye", self.matrix_expression(smallest, root))
        message = "'eye' must stand beside another matrix of its size"
        self.report.error("RNN228", message, span, help="write 'v' for 'eye(H)@v'")
        return Const(0.0)

    def matrix_shape(self, term: Term) -> Shape:
        """The shape of a term of matrix arithmetic (a vector's where it is a number)."""
        match term:
            case Val(name):
                return self.shapes[self.actual(name)]
            case Op(_, arguments):
                shapes = [self.matrix_shape(argument) for argument in arguments]
                return next((shape for shape in shapes if shape.is_matrix), Shape(ONE))
            case Surrogate(_, operand):
                return self.matrix_shape(operand)
            case Transposed(matrix):
                shape = self.matrix_shape(matrix)
                return Shape(shape.columns or ONE, shape.width, "matrix") if shape.is_matrix else shape
            case OfMatrix("norm"):
                return Shape(HEADS)
            case OfMatrix("diag", vector) if not self.grids.is_grid(vector):
                width = self.vector_width(vector)
                return Shape(width, width, "matrix")
            case OfMatrix(_, matrix) if not self.grids.is_reduction(term):
                return self.matrix_shape(matrix)
            case Product(left, right):
                rows, columns = self.matrix_shape(left), self.matrix_shape(right)
                both = rows.is_matrix and columns.is_matrix
                return Shape(rows.width, columns.columns, "matrix") if both else Shape(ONE)
            case Eye(dim):
                return Shape(dim, dim, "matrix")
            case _:
                return Shape(ONE)

    def vector_width(self, term: Term) -> Dim:
        return self.shapes[self.operand(term)].width


def flatten(typed: Typed, report: Report) -> FlatCell:
    """Cut the equations that the states and the output need into nodes; see the module's docstring."""
    return _Flattener(typed, report).run()
