"""Mistakes in the faster twins of the operations; Triton's run in its interpreter."""

from ..mutant import mutants_of

rope = mutants_of("ops/fused/rope.py", "ops/fused/test_rope")
sampling = mutants_of("ops/fused/sampling.py", "ops/fused/test_sampling", "ops/test_sampling")
scoring = mutants_of("ops/fused/scoring.py", "ops/fused/test_scoring", "ops/test_scoring")
triton_compaction = mutants_of("ops/triton/compaction.py", "ops/triton/test_compaction")
triton_rope = mutants_of("ops/triton/rope.py", "ops/triton/test_rope")
triton_sampling = mutants_of("ops/triton/sampling.py", "ops/triton/test_sampling")
triton_scoring = mutants_of("ops/triton/scoring.py", "ops/triton/test_scoring")

MUTANTS = [
    rope("the second half takes the first half's sin", "sub_(first * sin2)", "sub_(first * sin1)"),
    rope(
        "the first half's norm is not divided out",
        "(first * cos1).add_(second * sin1).div_(norm1)",
        "(first * cos1).add_(second * sin1)",
    ),
    rope("what does not turn is not written", "into[..., rotated:] = own[..., rotated:]", "pass"),
    rope("backwards is taken for forwards", "layout is None or layout.backwards or", "layout is None or"),
    sampling("a zero vector has cosine 1 to itself", ".copy_(largest.squeeze(-1) > 0)", ".fill_(1.0)"),
    sampling("picked again", "cos.diagonal(dim1=-2, dim2=-1).fill_(torch.inf)", "pass"),
    sampling("the nearest, not the farthest", "pick = nearest.argmin(dim=-1)", "pick = nearest.argmax(dim=-1)"),
    sampling("picks of the first set for all", "first_row + pick", "pick"),
    sampling("bad numbers are taken", 'reference.require_finite(largest, "queries")', "pass"),
    sampling(
        "only the last pick counts",
        "torch.maximum(nearest, to_picks.index_select(0, first_row + pick), out=nearest)",
        "nearest = to_picks.index_select(0, first_row + pick)",
    ),
    scoring("sinks take no part", "own_sinks = None if sinks is None else sinks[part]", "own_sinks = None"),
    scoring(
        "every block takes the first sinks", "sinks[part]", "sinks[: part.stop - part.start][: keys[:, part].shape[1]]"
    ),
    scoring("logits without softcap", "if params.softcap is not None:", "if False:"),
    scoring("capped logits are not scaled back", ".tanh_().mul_(params.softcap)", ".tanh_()"),
    scoring("logits without scaling", "(queries.float() * params.scaling)", "queries.float()"),
    scoring("a query does not see its own entry", "held[:, :, None, None, :] > at", "held[:, :, None, None, :] >= at"),
    scoring("a query that sees nothing spreads its weight", "return weights.mul_(sees)", "return weights"),
    scoring(
        "pools of queries and of heads swapped",
        "pool(pool(weights, 3, query_pool), 2, group_pool)",
        "pool(pool(weights, 3, group_pool), 2, query_pool)",
    ),
    scoring("the pool of heads is not looked at", 'if query_pool == group_pool == "max":', 'if query_pool == "max":'),
    scoring(
        "every block looks at the first heads' positions",
        "key_positions[:, part], own",
        "key_positions[:, : keys[:, part].shape[1]], own",
    ),
    triton_compaction(
        "a survivor in the first slot above is no hole's", "hole = from_ >= new_length", "hole = from_ > new_length"
    ),
    triton_compaction("the first rows, not those named", "row = tl.load(index + row)", "row = row"),
    triton_compaction("the end of a wide entry stays", "range(0, width, WIDTH)", "range(0, WIDTH, WIDTH)"),
    triton_rope("turned the other way", "tl.where(second, -1.0, 1.0)", "tl.where(second, 1.0, -1.0)"),
    triton_rope(
        "the norm of a pair that turns alike", "norm = ones * c + sign * ones_paired * s", "norm = c * c + s * s"
    ),
    triton_rope("all dimensions turn", "is_rotated = inside & (d < rotary)", "is_rotated = inside"),
    triton_rope(
        "every row takes its own cos, also where there is one",
        "return row if cos.shape[0] > 1 else 0, step",
        "return row, step",
    ),
    triton_rope(
        "every step takes its own cos, also where there is one", "step if cos.shape[1] > 1 else 0, dim", "step, dim"
    ),
    triton_sampling("a zero vector has cosine 1 to itself", "tl.where(nonzero, 1.0, 0.0)[:, None]", "1.0"),
    triton_sampling("beyond a matrix: a cosine to itself is left out", "axis=1) + itself, count)", "axis=1), count)"),
    triton_sampling(
        "beyond a matrix: ties go to the last block",
        "following = tl.where(low < lowest,",
        "following = tl.where(low <= lowest,",
    ),
    triton_sampling(
        "beyond a matrix: picked again", 'near = tl.where(start + i == pick, float("inf"), near)', "near = near"
    ),
    triton_sampling("only the last pick counts", "tl.maximum(nearest, to_pick)", "to_pick"),
    triton_scoring("sinks take no part in the sum", "total += tl.exp(sink - largest)", "total += 0.0"),
    triton_scoring("logits without scaling", "logits = logits * scaling", "logits = logits"),
    triton_scoring("capped logits are not scaled back", "capped = softcap * (1.0 - shrunk)", "capped = (1.0 - shrunk)"),
    triton_scoring(
        "what is not visible has weight",
        "weights = tl.where(visible, tl.exp(logits - total[:, None]), 0.0)",
        "weights = tl.exp(logits - total[:, None])",
    ),
    triton_scoring("heads of another group", "head = kv_head * group + member", "head = member * kv_heads + kv_head"),
    triton_scoring(
        "only the last block of queries counts",
        "over_queries = tl.maximum(over_queries, tl.max(weights, axis=0))",
        "over_queries = tl.max(weights, axis=0)",
    ),
    triton_scoring(
        "the pool of heads is that of queries",
        "_pooled(over_group, group_sum, group, GROUP_MAX)",
        "_pooled(over_group, group_sum, group, QUERY_MAX)",
    ),
    triton_scoring(
        "sums of different bases are added", "total = total * tl.exp(largest - base) + ", "total = total + "
    ),
    triton_scoring("queries are rounded to the keys' bfloat16", "rest = q - high.to(tl.float32)", "rest = q - q"),
]
