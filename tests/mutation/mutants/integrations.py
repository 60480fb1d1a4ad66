"""Mistakes at the hosts, as far as they show without a server or a GPU."""

from ..mutant import mutants_of

REQUESTS, WEIGHTS, HIDDEN, ROWS, GENERATE = (
    "integrations/vllm/test_requests", "integrations/test_weights", "integrations/test_hidden_entries",
    "integrations/test_rows", "integrations/test_generate",
)  # fmt: skip

requests = mutants_of("integrations/vllm/requests.py", REQUESTS)
blocks = mutants_of("integrations/vllm/entries.py", REQUESTS)
call = mutants_of("integrations/transformers/call.py", WEIGHTS, HIDDEN)
host = mutants_of("integrations/transformers/host_layer.py", ROWS, GENERATE, "integrations/test_continuation")
mask = mutants_of("integrations/transformers/attention.py", HIDDEN)
CONTINUATION, READING, ROTATION, SAVING, ATTACHMENT, COLUMNS = (
    f"integrations/test_{name}"
    for name in ("continuation", "reading", "rotation", "saving", "attachment", "attention_weights")
)
seen = mutants_of("integrations/transformers/continuation.py", CONTINUATION)
generation = mutants_of("integrations/transformers/generation.py", ATTACHMENT, CONTINUATION, SAVING)
reading = mutants_of("integrations/transformers/reading.py", READING)
reader = mutants_of("integrations/transformers/call.py", READING, COLUMNS)
rotation = mutants_of("integrations/transformers/rotation.py", ROTATION)
attachment = mutants_of("integrations/transformers/attachment.py", ATTACHMENT, CONTINUATION, SAVING)
cache = mutants_of("integrations/transformers/cache.py", ROWS, CONTINUATION, GENERATE, ATTACHMENT)
passes = mutants_of("integrations/transformers/forward_pass.py", CONTINUATION, GENERATE, ATTACHMENT)

MUTANTS = [
    requests("rows of the window are not given back", "self._free_rows.append(request.row)", "pass"),
    requests("what began before begins on top", "self.drop(name)\n        count", "count"),
    requests(
        "waiting steps are one nearer to the eviction",
        "progress.left + waiting - 1 - step",
        "progress.left + waiting - 2 - step",
    ),
    requests(
        "waiting steps are one later", "rope.steps(stop - waiting, stop)", "rope.steps(stop - waiting + 1, stop + 1)"
    ),
    requests("now is the next token", "torch.full((1,), seen - 1,", "torch.full((1,), seen,"),
    requests("beacons are rotated to the next token", "rope.steps(seen - 1, seen)", "rope.steps(seen, seen + 1)"),
    requests("queries of a chunk are not copied", "append(queries.clone())", "append(queries)"),
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
        "all steps of a chunk are as near to the eviction as the last",
        "chunk.left + len(chunk) - 1 - step",
        "chunk.left - step",
    ),
    requests(
        "stacked layers with the first one's sinks",
        "params = first.params if len(numbers) == 1 else self.stacked_params",
        "params = first.params",
    ),
    blocks(
        "positions do not follow the compaction",
        "self.held = ops.gather_entries(view.positions, source)[0]",
        "self.held = view.positions[0, :, : source.shape[-1]]",
    ),
    blocks(
        "all layers take the first one's entries",
        "write(entries, self.table, into[0, heads], new[heads])",
        "write(entries, self.table, into[0, heads], new[: layer[0].shape[1]])",
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
    cache(
        "rows chosen by bool are taken for numbers",
        "indices.nonzero().flatten() if indices.dtype == torch.bool else indices",
        "indices.long()",
    ),
    mask("a new token does not see itself", "visible = index <= own", "visible = index < own"),
    seen("a text of the same length continues", "if length <= columns:", "if length < columns:"),
    seen("a text is not compared", "if differs.any():", "if False:"),
    seen("padding is compared", "differs[:, :known] &= self._real[:, :known]", "pass"),
    seen("moved rows keep the texts of others", "persistent_rows(block, index.to(block.device))", "block"),
    seen("ids of steps are not written", "select(1, BLOCK - free).copy_(ids[:, 0])", "select(1, BLOCK - free)"),
    seen("the last position may come again", "new <= last:", "new < last:"),
    seen("positions of padding count", "int(reduce(own[kept], 0)) if kept.any()", "int(reduce(own, 0)) if kept.any()"),
    seen("a mask over cached tokens is let pass", "if not same:", "if False:"),
    seen("hidden tokens of single steps are let pass", 'elif mask.device.type == "cpu":', "elif False:"),
    generation("use_cache=False is let pass", "generation_config.use_cache is False", "False"),
    generation("generate stays checked", "delattr(model, self.name)", "pass"),
    generation("a copy asks the first model", "(getattr, (self._model(), self.name))", "(_same, (self,))"),
    reading("what remains is read although more may come", "if stop > count and not is_last:", "if False:"),
    reading("a last chunk is left out", "if stop > count and not is_last:", "if stop > count:"),
    reading("chunks of a layer go on over the host's", "((position - block) // own + 1)", "(position // own + 1)"),
    reading("what was taken in before is forgotten", "position = before + start", "position = start"),
    reader("tokens that wait are read as if first", "*(before + column for column", "*(column for column"),
    reader("tokens that have waited are not of the prompt", "is_prompt=True", "is_prompt=False"),
    reader("columns of weights are those after the eviction", "host.note_columns(weights)", "host.note_columns(None)"),
    rotation(
        "one rotation is enough",
        "for _ in range(2)]",
        "for _ in range(1)]",
        equivalent="angles of one draw differ in each frequency; the second is there in case two of them are close",
    ),
    rotation("positions are not tried", "for position in FAR:", "for position in ():"),
    rotation("layers without rotation are refused", "return ops.apply_identity", "continue"),
    rotation("16 bits are taken for exact", "tolerance = 1e-4 if exact else 5e-2", "tolerance = 1e-4"),
    attachment(
        "the wrapper's name stays", "config._attn_implementation = kernel_of(config._attn_implementation)", "pass"
    ),
    attachment("hooks go along with a copy", "return _Hook, ()", "return _Hook, (self.act, *self.first)"),
    attachment(
        "a kernel changed since is not looked at",
        "        with _LOCK:\n            self.require_kernels()\n",
        "        with _LOCK:\n",
    ),
    cache("layers are not parted by rotation", "if len(alike) == 1 else", "if True else"),
    passes("a pass that broke off is forgotten", "self.is_broken |= advanced or has_host_layers", "pass"),
    passes("a cache that is not used is not noticed", "if self.num_columns == columns:", "if False:"),
    passes("all cos and sin are one", "if known.cos is rope.cos and known.sin is rope.sin:", "if True:"),
    host("any model may write", "if not self.is_announced:", "if False:"),
]
