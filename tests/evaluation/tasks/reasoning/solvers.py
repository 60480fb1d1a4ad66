"""Answers from the text of a prompt alone, written without the library: what the four tasks mean."""

LOWER = "abcdefghijklmnopqrstuvwx"
CIRCLED = [chr(0x24D0 + i) for i in range(24)]


def parse(prompt):
    """(rows by key, list in [], list in (), condition behind ?, start behind >)"""
    body, _, start = prompt[1:-1].rpartition(";>")
    rows, order, turns, condition = {}, "", "", ""
    for part in body.split(";"):
        if part[0] == "[":
            order = [LOWER[CIRCLED.index(c)] for c in part[1:-1]]
        elif part[0] == "(":
            turns = [LOWER[CIRCLED.index(c)] for c in part[1:-1]]
        elif part[0] == "?":
            condition = part[1:]
        else:
            assert part[0] not in rows
            rows[part[0]] = part[1:]
    return rows, order, turns, condition, start


def work(register, row, times=None):
    for _ in range(int(row[2]) if times is None else times):
        register = {"+": register + int(row[1]), "-": register - int(row[1]), "*": register * int(row[1])}[row[0]] % 10
    return register


def machine(prompt):
    rows, _, _, condition, (state, register) = parse(prompt)
    state, register, path = state.lower(), int(register), []
    while rows[state] != "!":
        path.append(state)
        row = rows[state]
        register = work(register, row)
        exits = row[3:]
        state = exits[register % 2].lower()
    return exits + str(work(register, condition, 1)), path


def ledger(prompt):
    rows, order, _, asked, register = parse(prompt)
    register, totals = int(register), {}
    for item in order:
        register = work(register, rows[item])
        totals[item.upper()] = str(register)
    return "".join(totals[item] for item in asked), order


def plan(prompt):
    rows, order, turns, asked, register = parse(prompt)
    register, after, path = int(register), {}, []
    for turn in turns:
        for item in order:
            register = work(register, rows[item])
            path.append(item)
        after[turn.upper()] = str(register)
    return "".join(after[turn] for turn in asked), path


def search(prompt):
    rows, _, _, condition, (root, register) = parse(prompt)
    path = []

    def visit(place, register, above):
        """The answer if the goal lies below, else None. ``above``: (first tag, open fork)."""
        path.append(place)
        row = rows[place]
        if row == "!":
            return above[0] + above[1] + str(work(register, condition, 1))
        if row == "<":
            return None
        first, second = row[3:]
        found = visit(first.lower(), work(register, row), (first, place.upper()))
        # The second way leaves with the register as it was at the fork, and the fork is no longer open.
        return found or visit(second.lower(), work(register, row), (second, above[1]))

    return visit(root.lower(), int(register), (".", ".")), path


SOLVERS = {"machine": machine, "ledger": ledger, "plan": plan, "search": search}
