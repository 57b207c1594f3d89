"""Equations to nodes: every product and every function across units becomes a node of its own with a named result.

Equal products, row functions and operands are computed once for the whole cell.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from rnncc.ir import dim as dims
from rnncc.ir.cell import Contraction, Delay, Node, Pointwise, RowOp, RowOperator
from rnncc.ir.dim import HEADS, ONE, Dim
from rnncc.ir.expr import Apply, Const, Expr, Ref, apply
from rnncc.language.diagnostics import InternalError
from rnncc.language.source import Span
from rnncc.stages.check.declare import Symbols
from rnncc.stages.check.report import Report
from rnncc.stages.check.resolve import Resolved
from rnncc.stages.check.rows import Rows
from rnncc.stages.check.shape import Shape, Shapes, input_dims, joint
from rnncc.stages.check.terms import Bad, Equation, Eye, Num, Op, Part, Product, Row, Term, Transposed, Val, walk


@dataclass(frozen=True, slots=True)
class Flat:
    """Nodes by target in the order of the text, and the shape of every value."""

    nodes: dict[str, Node]
    shapes: dict[str, Shape]


class Flattener:
    """Cuts equations into nodes. `target` is the equation at hand: it names the temporaries."""

    def __init__(self, resolved: Resolved, shapes: Shapes, symbols: Symbols, output: str, report: Report) -> None:
        self.resolved, self.symbols, self.report = resolved, symbols, report
        self.shapes: dict[str, Shape] = dict(shapes.values)
        self.canonical = shapes.canonical
        self.input_dims = input_dims(symbols)
        self.nodes: dict[str, Node] = {}
        self.temporaries: dict[Expr, str] = {}
        self.products: dict[tuple[str, str], str] = {}
        self.numbers: dict[str, int] = {}
        self.target = ""
        self.span = Span(0, 0)
        self.aliases = self.find_aliases(output)
        self.rows = Rows(self)

    def run(self) -> Flat:
        for name, steps in self.resolved.input_delays.items():
            for step in range(1, steps + 1):
                operand = name if step == 1 else f"{name}__{step - 1}"
                self.nodes[f"{name}__{step}"] = Delay(f"{name}__{step}", operand)
        for equation in self.resolved.equations:
            self.target, self.span = equation.target, equation.span
            if equation.target not in self.aliases:
                self.equation(equation)
        for name, steps in self.resolved.state_delays.items():
            for step in range(1, steps):
                source = f"{name}__1" if step == 1 else f"{name}__delay{step - 1}__1"
                delay = f"{name}__delay{step}"
                self.nodes[delay] = Pointwise(delay, Ref(source), self.symbols.states[name].span)
        return Flat(self.nodes, self.shapes)

    def find_aliases(self, output: str) -> dict[str, str]:
        """Targets that only rename a value of the same width (`s[0] = h[t-1]`)."""
        aliases: dict[str, str] = {}
        for equation in self.resolved.equations:
            target, term = equation.target, equation.term
            if not isinstance(term, Val) or target in self.symbols.states or target == output:
                continue
            if self.shapes[target].width == self.shapes[term.name].width:
                aliases[target] = term.name
        return aliases

    def equation(self, equation: Equation) -> None:
        """The node that defines the target, after the nodes it needs."""
        target, term = equation.target, equation.term
        width = self.shapes[target].width
        if self.shapes[target].is_matrix:
            self.define(Pointwise(target, self.matrix_expression(term, term), equation.span))
            return
        # What a state takes from inputs alone is computed before its loop: `fuse` joins the two where it is not so.
        is_state = target in self.symbols.states
        if isinstance(term, Product) and not is_state and not self.is_diagonal(term.matrix):
            key = (self.matrix(term.matrix), self.operand(term.operand))
            if key not in self.products and self.shapes[key[0]].width == width:
                self.products[key] = target
                self.define(Contraction(target, *key, span=equation.span))
                return
        if isinstance(term, Part):
            self.part(term, equation)
            return
        if isinstance(term, Row) and not is_state:
            self.define(self.rows.node(term, target))
            return
        self.define(Pointwise(target, self.expression(term), equation.span))

    def part(self, term: Part, equation: Equation) -> None:
        operand = self.operand(term.operand)
        if len(term.targets) == 1:
            self.define(Pointwise(equation.target, Ref(operand), equation.span))
            return
        offset = dims.constant(0)
        for name in term.targets[: term.index]:
            offset = dims.add(offset, self.shapes[name].width)
        self.define(RowOp(equation.target, RowOperator.SLICE, (operand,), offset, span=equation.span))

    def define(self, node: Node) -> None:
        if node.target in self.nodes:
            raise InternalError(f"{node.target} is defined twice")
        self.nodes[node.target] = node

    def name(self, suffix: str = "") -> str:
        """A name for a temporary of this equation: `i__R`, else `i__0`, `i__2` (`h__1` is a previous state)."""
        name = f"{self.target}__{suffix}"
        if suffix and name not in self.shapes:
            return name
        stem = f"{name}_" if suffix else name
        number = self.numbers.get(stem, 0)
        while f"{stem}{number}" in self.shapes or (not suffix and number == 1 and self.target in self.symbols.states):
            number += 1
        self.numbers[stem] = number + 1
        return f"{stem}{number}"

    def temporary(self, node: Node, shape: Shape) -> str:
        """Enter a temporary's node under its own name."""
        self.shapes[node.target] = shape
        self.define(node)
        return node.target

    def actual(self, name: str) -> str:
        """The value behind aliases."""
        while name in self.aliases:
            name = self.aliases[name]
        return name

    def expression(self, term: Term) -> Expr:
        """A vector term as an elementwise expression over named values."""
        match term:
            case Num(value):
                return Const(value)
            case Val(name):
                return self.value(name)
            case Op(operator, arguments):
                return Apply(operator, tuple(self.expression(argument) for argument in arguments))
            case Product(matrix, operand):
                if self.is_diagonal(matrix):
                    return apply("mul", self.expression(matrix), self.expression(operand))
                return Ref(self.product(term))
            case Row():
                return Ref(self.rows.value(term))
            case Part() | Transposed() | Eye() | Bad():
                raise InternalError(f"a {type(term).__name__} inside an expression")
            case _:
                assert_never(term)

    def value(self, name: str) -> Expr:
        name = self.actual(name)
        constant = self.symbols.constants.get(name)
        # What shapes the program is compiled in, also where it serves as a number.
        if constant is not None and name in self.symbols.statics.shaping:
            return Const(float(constant.value))
        return Ref(name)

    def operand(self, term: Term) -> str:
        """The name of a vector: that of a value, or of a temporary for an expression."""
        expr = self.expression(term)
        return expr.name if isinstance(expr, Ref) else self.named(expr)

    def named(self, expr: Expr) -> str:
        """A temporary for an expression, one for all equal ones."""
        if isinstance(expr, Ref):
            return expr.name
        if expr not in self.temporaries:
            node = Pointwise(self.name(), expr, self.span)
            self.temporaries[expr] = self.temporary(node, Shape(self.width(expr)))
        return self.temporaries[expr]

    def product(self, term: Product) -> str:
        """The value of `matrix @ operand`."""
        key = (self.matrix(term.matrix), self.operand(term.operand))
        if key not in self.products:
            node = Contraction(self.name(self.suffix(key[0])), *key, span=term.span)
            self.products[key] = self.temporary(node, Shape(self.shapes[key[0]].width))
        return self.products[key]

    def suffix(self, matrix: str) -> str:
        """What names a product: the family of the target's own member, else the matrix."""
        member = self.resolved.members.get(matrix)
        if member is None:
            return "" if "__" in matrix else matrix
        return member.family if member.target == self.target else matrix

    def width(self, expr: Expr) -> Dim:
        """The width of an elementwise expression: that of its wide operands."""
        match expr:
            case Const():
                return ONE
            case Ref(name):
                return self.shapes[name].width
            case Apply(_, arguments):
                widths = [self.width(argument) for argument in arguments]
                wide = [width for width in widths if width not in (ONE, HEADS)]
                return joint(wide, self.input_dims) if wide else HEADS if HEADS in widths else ONE
            case _:
                assert_never(expr)

    def is_diagonal(self, term: Term) -> bool:
        return isinstance(term, Val) and self.shapes[self.actual(term.name)].kind == "diag"

    def matrix(self, term: Term) -> str:
        """The name of a matrix: a member, a param, or a value of the prologue."""
        if isinstance(term, Val):
            return self.actual(term.name)
        expr = self.matrix_expression(term, term)
        if expr not in self.temporaries:
            node = Pointwise(self.name(), expr, term.span)
            self.temporaries[expr] = self.temporary(node, self.matrix_shape(term))
        return self.temporaries[expr]

    def matrix_expression(self, term: Term, root: Term) -> Expr:
        """Matrix arithmetic as an expression over whole matrices."""
        match term:
            case Op(operator, arguments):
                return Apply(operator, tuple(self.matrix_expression(argument, root) for argument in arguments))
            case Transposed(matrix):
                return apply("transpose", self.matrix_expression(matrix, root))
            case Product(left, right):
                return apply("matmul", self.matrix_expression(left, root), self.matrix_expression(right, root))
            case Eye(dim, span):
                return self.eye(dim, span, root)
            case _:
                return self.expression(term)

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
            case Transposed(matrix):
                shape = self.matrix_shape(matrix)
                return Shape(shape.columns or ONE, shape.width, "matrix")
            case Product(left, right):
                return Shape(self.matrix_shape(left).width, self.matrix_shape(right).columns, "matrix")
            case Eye(dim):
                return Shape(dim, dim, "matrix")
            case _:
                return Shape(ONE)


def flatten(resolved: Resolved, shapes: Shapes, symbols: Symbols, output: str, report: Report) -> Flat:
    """Cut all equations into nodes; see the module's docstring."""
    return Flattener(resolved, shapes, symbols, output, report).run()
