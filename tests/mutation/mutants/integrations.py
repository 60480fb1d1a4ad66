"""Mistakes at the hosts, as far as they show without a server or a GPU."""

from ..mutant import mutants_of

REQUESTS, WEIGHTS, HIDDEN, ROWS, GENERATE = (
    "integrations/vllm/test_requests", "integrations/test_weights", "integrations/test_hidden_entries",
    "integrations/test_rows", "integrations/test_generate",
)  # fmt: skip

requests = mutants_of("integrations/vllm/requests.py", REQUESTS)
call = mutants_of("integrations/transformers/call.py", WEIGHTS, HIDDEN)
host = mutants_of("integrations/transformers/host_layer.py", ROWS, GENERATE)
mask = mutants_of("integrations/transformers/attention.py", HIDDEN)

MUTANTS = [
    requests("rows of the window are not given back", "self._free_rows.append(request.row)", "pass"),
    requests("what began before begins on top", "self.drop(name)\n        count", "count"),
    requests(
        "waiting steps are one nearer to the eviction",
        "(progress.stored - waiting + 1 + step)",
        "(progress.stored - waiting + 2 + step)",
    ),
    requests(
        "waiting steps are one later", "rope.steps(stop - waiting, stop)", "rope.steps(stop - waiting + 1, stop + 1)"
    ),
    requests("now is the next token", "torch.full((1,), seen - 1,", "torch.full((1,), seen,"),
    requests("beacons are turned to the next token", "rope.steps(seen - 1, seen)", "rope.steps(seen, seen + 1)"),
    requests("the memory does not follow the compaction", "request.states[index].evicted(source, ALONE)", "pass"),
    requests(
        "positions do not follow the compaction", "ops.gather_entries(positions, source)[0]", "positions[0, :, :keep]"
    ),
    requests("queries of a piece are not copied", "append(queries.clone())", "append(queries)"),
    requests(
        "dropped entries are those that stay", "self.totals.dropped += count - keep", "self.totals.dropped += keep"
    ),
    requests("evictions are counted for every layer", "if numbers[0] == 0:", "if True:"),
    requests("tokens are counted once a step", "self.totals.seen += tokens", "self.totals.seen += 1"),
    requests(
        "queries wait while several tokens come",
        "elif request.waiting == WINDOW or tokens > 1:",
        "elif request.waiting == WINDOW:",
    ),
    requests(
        "a run's steps are all as near to the eviction as the last", "run.left + len(run) - 1 - step", "run.left - step"
    ),
    requests(
        "all layers take the first one's entries",
        "write(entries, table, into[0, heads], new[heads])",
        "write(entries, table, into[0, heads], new[: cache[0].shape[1]])",
    ),
    requests(
        "a joint memory with the first layer's sinks",
        "params = self.layers[numbers[0]].params if alone else self._joint",
        "params = self.layers[numbers[0]].params",
    ),
    requests(
        "layers of other softcap are joined",
        "(layer.params.scaling, layer.params.softcap, layer",
        "(layer.params.scaling, layer",
    ),
    call("policies see no sinks", "None if sinks is None else sinks.detach()", "None"),
    call("policies see no softcap", 'kwargs.get("softcap")', "None"),
    call(
        "policies see the usual scaling",
        "query.shape[-1] ** -0.5 if scaling is None else scaling",
        "query.shape[-1] ** -0.5",
    ),
    host("every layer moves the rows of all", "if self.number == 0:", "if True:"),
    host("a second turn is more of the prompt", "and not self.has_decoded:", "and True:"),
    host(
        "rows chosen by bool are taken for numbers",
        "indices.nonzero().flatten() if indices.dtype == torch.bool else indices",
        "indices.long()",
    ),
    mask("a new token does not see itself", "visible = index <= own", "visible = index < own"),
]
