"""Mistakes in the reference operations."""

from ..mutant import mutants_of

FORMULA = "policies/test_against_formula"

backend = mutants_of("ops/backend.py", "ops/test_backend")
checks = mutants_of("ops/checks.py", "ops/test_sampling", "ops/test_selection")
clustering = mutants_of("ops/clustering.py", "ops/test_clustering", FORMULA)
compaction = mutants_of("ops/compaction.py", "ops/test_compaction", "cache/test_layer_against_scalar")
redundancy = mutants_of("ops/redundancy.py", "ops/test_redundancy", FORMULA)
rope = mutants_of("ops/rope.py", "ops/test_rope", "ops/fused/test_rope", FORMULA)
sampling = mutants_of("ops/sampling.py", "ops/test_sampling", "ops/fused/test_sampling")
scoring = mutants_of("ops/scoring.py", "ops/test_scoring")
selection = mutants_of("ops/selection.py", "ops/test_selection")
smoothing = mutants_of("ops/smoothing.py", "ops/test_smoothing")

MUTANTS = [
    backend(
        "kernels take what needs a gradient", "return tensor.requires_grad and torch.is_grad_enabled()", "return False"
    ),
    backend("the choice outlives its block", "_choice = self._before", "pass"),
    checks("one finite number is enough", "torch.isfinite(tensor).all()", "torch.isfinite(tensor).any()"),
    clustering("one slot too many exists", "< count.view(-1, 1, 1)", "<= count.view(-1, 1, 1)"),
    clustering("the first pick may not exist", "average.masked_fill(~exists, torch.inf).argmin", "average.argmin"),
    clustering(
        "a later pick may not exist",
        "nearest = torch.full_like(average, -torch.inf).masked_fill(~exists, torch.inf)",
        "nearest = torch.full_like(average, -torch.inf)",
    ),
    clustering(
        "a centre without queries moves",
        "torch.where(size > 0, unit_vectors(member @ unit), centres)",
        "unit_vectors(member @ unit)",
    ),
    clustering("centroids lose their lengths", "(member @ queries) / size", "(member @ unit) / size"),
    clustering(
        "of equally near centres the last",
        "torch.where(best, order, torch.inf).amin(dim=2",
        "torch.where(best, order, -torch.inf).amax(dim=2",
    ),
    clustering("rounding decides between equally near queries", "keepdim=True) - TIE", "keepdim=True)"),
    clustering(
        "a query is taken twice",
        "cos.scatter_(-1, picks[-1].unsqueeze(2).expand(-1, -1, cos.shape[2], -1), -torch.inf)",
        "pass",
    ),
    compaction("a hole takes the next survivor", "rank = hole.cumsum(dim=-1) - 1", "rank = hole.cumsum(dim=-1)"),
    compaction(
        "one move too few", "min(num_entries - new_length, new_length)", "min(num_entries - new_length, new_length) - 1"
    ),
    compaction("what is no hole is filled first", "descending=True, stable=True", "descending=False, stable=True"),
    compaction(
        "the first rows, not those named",
        "(torch.arange(num_rows, device=source.device) if index is None else index)",
        "torch.arange(num_rows, device=source.device)",
    ),
    compaction(
        "moved the other way",
        "tensor[row, head, into] = tensor[row, head, from_]",
        "tensor[row, head, from_] = tensor[row, head, into]",
    ),
    redundancy("the diagonal of every block is that of the first", "cos.diagonal(start,", "cos.diagonal(0,"),
    redundancy("a cosine of just the threshold is alike", "cos <= threshold", "cos < threshold"),
    redundancy("summed, not averaged", "(total / size).softmax", "total.softmax"),
    redundancy(
        "of keys that repeat each other the newest pays, too",
        "positions.unsqueeze(-2) == newest, 0.0",
        "positions.unsqueeze(-2) == -2, 0.0",
    ),
    rope(
        "half by half, turned backwards", "torch.cat([-second, first], dim=-1)", "torch.cat([second, -first], dim=-1)"
    ),
    rope("side by side, turned backwards", "torch.stack([-odd, even], dim=-1)", "torch.stack([odd, -even], dim=-1)"),
    rope(
        "the attention factor is not divided out",
        "rope.apply(x.float(), cos, -sin) / norm",
        "rope.apply(x.float(), cos, -sin)",
    ),
    rope(
        "unrotate rotates forward", "rope.apply(x.float(), cos, -sin) / norm", "rope.apply(x.float(), cos, sin) / norm"
    ),
    rope(
        "rotate swaps cos and sin",
        "rope.cos.float(), rope.sin.float())\n\n\ndef unrotate(",
        "rope.sin.float(), rope.cos.float())\n\n\ndef unrotate(",
    ),
    rope(
        "rotate keeps the precision of its input",
        "rope.apply(x.float(), rope.cos.float(), rope.sin.float())",
        "rope.apply(x, rope.cos, rope.sin)",
    ),
    rope(
        "written to the beginning of the buffer",
        "target[:, :, start : start + x.shape[2]] =",
        "target[:, :, : x.shape[2]] =",
    ),
    sampling("a cosine to itself is rounded", "cos.diagonal(dim1=-2, dim2=-1).copy_(unit.any(dim=-1))", "pass"),
    sampling("a zero vector has cosine 1 to itself", ".copy_(unit.any(dim=-1))", ".fill_(1.0)"),
    sampling("the first pick is the most central", "cos.mean(dim=-1).argmin", "cos.mean(dim=-1).argmax"),
    sampling(
        "farthest from the farthest pick",
        "torch.maximum(nearest, to_pick)",
        "torch.where(nearest.isinf(), to_pick, torch.minimum(nearest, to_pick))",
    ),
    sampling("picked again", ".scatter_(-1, pick, torch.inf)", ""),
    sampling(
        "tiny vectors underflow",
        "x = x / x.abs().amax(dim=-1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny)",
        "pass",
    ),
    sampling("cosines in the precision of the input", "x = x.float()", "pass"),
    scoring("logits without scaling", "params.scaling * torch.einsum", "torch.einsum"),
    scoring(
        "logits without softcap",
        "return logits if params.softcap is None else params.softcap * torch.tanh(logits / params.softcap)",
        "return logits",
    ),
    scoring(
        "a query does not see its own entry",
        "key_positions[:, :, None, None, :] <= query",
        "key_positions[:, :, None, None, :] < query",
    ),
    scoring(
        "sinks take no part",
        "return None if params.sinks is None else params.sinks.float()",
        "return None if True else params.sinks.float()",
    ),
    scoring(
        "sinks of heads of another group", "view(1, kv_heads, -1, 1, 1)", "view(1, -1, kv_heads, 1, 1).transpose(1, 2)"
    ),
    scoring("maximum and mean swapped", 'x.amax(dim) if how == "max"', 'x.amax(dim) if how == "mean"'),
    scoring(
        "pools of queries and of heads swapped",
        "pool(pool(weights, 3, query_pool), 2, group_pool)",
        "pool(pool(weights, 3, group_pool), 2, query_pool)",
    ),
    scoring(
        "the sinks of a group count by their mean", "sinks.amax(dim=2, keepdim=True)", "sinks.mean(dim=2, keepdim=True)"
    ),
    scoring(
        "a group takes the mean of its logits", "params).amax(dim=2, keepdim=True)", "params).mean(dim=2, keepdim=True)"
    ),
    scoring("logits in the precision of the keys", "grouped, keys.float())", "grouped.to(keys.dtype), keys).float()"),
    scoring(
        "a query that sees nothing gives NaN",
        "torch.where(visible, (logits - total).exp(), 0.0)",
        "(logits - total).exp()",
    ),
    selection(
        "the newest entry is not protected",
        "oldest_first[..., num_entries - protect :]]",
        "oldest_first[..., num_entries - protect - 1 : num_entries - 1]]",
    ),
    selection("the lowest scores stay", "descending=True, stable=True", "descending=False, stable=True"),
    selection(
        "among equal scores the newer stays",
        "best = scores.gather(-1, middle).sort(dim=-1, descending=True, stable=True).indices",
        "middle = middle.flip(-1); best = scores.gather(-1, middle).sort(dim=-1, descending=True, stable=True).indices",
    ),
    selection("slots out of order", "torch.cat(keep, dim=-1).sort(dim=-1).values", "torch.cat(keep, dim=-1)"),
    selection("bad scores are taken", 'require_finite(scores, "scores")', "pass"),
    selection(
        "first and last by slot",
        "positions.argsort(dim=-1)",
        "torch.arange(num_entries, device=scores.device).expand(scores.shape)",
    ),
    selection("nothing to evict is no error", "<= budget < num_entries", "<= budget <= num_entries"),
    smoothing("an end is averaged over the whole kernel", "count_include_pad=False", "count_include_pad=True"),
    smoothing("averages for maxima", "functional.max_pool1d(", "functional.avg_pool1d("),
    smoothing(
        "smoothed scores stay in order of time", "torch.empty_like(pooled).scatter_(-1, oldest_first, pooled)", "pooled"
    ),
    smoothing("neighbours by slot", "in_time = scores.gather(-1, oldest_first)", "in_time = scores"),
]
