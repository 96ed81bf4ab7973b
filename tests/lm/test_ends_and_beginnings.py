"""Texts begin and end once, rendered by chat templates of several styles and encoded by tokenizers of several kinds;
samples end where the model ends them.
"""

import json

import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import tiny_lm
from lm_runs import BASE, TWO
from spectrakit.api.actions import fit, predict
from spectrakit.config.compose import compose
from spectrakit.lm.language_model import LanguageModel, generate
from spectrakit.lm.pretrained import Encoder, end_of_text, ends_of

SPECIAL = ["<s>", "</s>", "<|end|>", "<|im_start|>", "<|im_end|>", "[INST]", "[/INST]", "[gMASK]"]
TALK = [{"role": "user", "content": "one two"}, {"role": "assistant", "content": "three four"}]


def tokenizer_with(around: str | None, eos: str = "</s>", template: str | None = None) -> PreTrainedTokenizerFast:
    "A byte-level tokenizer, which keeps spaces and line ends, that puts `around` (such as '<s> $A') around each text."
    tokens = Tokenizer(models.BPE())
    tokens.pre_tokenizer, tokens.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokens.train_from_iterator(
        [" ".join(tiny_lm.VOCABULARY)] * 3,
        trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False),
    )
    tokens.add_special_tokens([AddedToken(word, special=True, normalized=False) for word in SPECIAL])
    if around:
        named = [(word, tokens.token_to_id(word)) for word in SPECIAL if word in around]
        tokens.post_processor = processors.TemplateProcessing(single=around, special_tokens=named)
    made = PreTrainedTokenizerFast(tokenizer_object=tokens, bos_token="<s>", eos_token=eos)
    made.chat_template = template
    return made


AROUND = (None, "<s> $A", "$A </s>", "<s> $A </s>", "[gMASK] <s> $A")
TEMPLATES = {
    "llama": "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'user' %}[INST] {{ m['content'] }} [/INST]"
    "{% else %} {{ m['content'] }} {{ eos_token }}{% endif %}{% endfor %}",
    "chatml": "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}",
    "chatml with a beginning": "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}"
    "<|im_end|>\n{% endfor %}",
    "a space before": " {{ bos_token }}{% for m in messages %}{{ m['content'] }}{{ eos_token }} {% endfor %}",
    "no end": "{{ bos_token }}{% for m in messages %}[INST] {{ m['content'] }} [/INST] {% endfor %}",
}


@pytest.mark.parametrize("style", TEMPLATES)
@pytest.mark.parametrize("around", AROUND)
def test_a_rendered_conversation_has_one_beginning_and_one_end(around, style):
    ends = "<|im_end|>" if "chatml" in style else "</s>"
    tokenizer = tokenizer_with(around, ends, TEMPLATES[style])
    text = tokenizer.apply_chat_template(TALK, tokenize=False)
    wanted = tokenizer(text, add_special_tokens=False)["input_ids"]  # as the template has it
    assert wanted == tokenizer.apply_chat_template(TALK, return_dict=False)
    end = end_of_text(tokenizer)
    (ids,) = Encoder(tokenizer, end)([text])
    if style == "no end":
        wanted = [*wanted, end]
    if tokenizer.bos_token not in text:
        before = (around or "$A").split("$A")[0].split()
        wanted = [*tokenizer.convert_tokens_to_ids(before), *wanted]
    assert ids == wanted
    assert ids.count(tokenizer.bos_token_id) == (tokenizer.bos_token in text or "<s>" in (around or ""))


@pytest.mark.parametrize("around", AROUND)
def test_a_plain_text_begins_as_the_tokenizer_has_it_and_ends_once(around):
    tokenizer = tokenizer_with(around)
    bare, end = tokenizer("one two", add_special_tokens=False)["input_ids"], tokenizer.eos_token_id
    whole = tokenizer("one two")["input_ids"]
    expected = whole if whole[-1] == end else [*whole, end]
    assert Encoder(tokenizer, end)(["one two"]) == [expected]
    assert Encoder(tokenizer, end).beginnings(["one two"]) == [expected[:-1]] and bare
    named = tokenizer.convert_tokens_to_ids("<|end|>")  # another end has the place of the tokenizer's own
    assert Encoder(tokenizer, named)(["one two"]) == [[*expected[:-1], named]]
    assert Encoder(tokenizer, named)(["one<|end|>two"])[0][-1] == named  # an end in the middle is none
    assert Encoder(tokenizer, end).beginnings([]) == []


def test_a_prompt_has_one_beginning_and_keeps_its_last_token():
    tokenizer = tokenizer_with("<s> $A </s>")
    found = Encoder(tokenizer, tokenizer.eos_token_id).beginnings(["<s>[INST] one [/INST]", "one</s>"])
    assert [tokenizer.decode(ids) for ids in found] == ["<s>[INST] one [/INST]", "<s>one</s>"]


# samples


def test_the_ends_of_a_base_that_has_several_count_as_well():
    model = LlamaForCausalLM(
        LlamaConfig(vocab_size=9, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1)
    )
    for own, wanted in (([7, 8], [3, 7, 8]), ([3, 8], [3, 8]), (8, [3]), (None, [3])):
        model.generation_config.eos_token_id = own
        assert ends_of(model, 3) == wanted


class Says:
    "Stands for a model that continues with given tokens, as generate does: one that has ended is filled up."

    def __init__(self, rows, ends=None):
        self.rows, self.generation_config = rows, GenerationConfig(eos_token_id=ends)

    def generate(self, input_ids, max_new_tokens, eos_token_id, **options):
        self.asked = {"eos_token_id": eos_token_id, **options}
        return torch.cat([input_ids, torch.tensor(self.rows)[:, :max_new_tokens]], 1)

    def parameters(self):
        return iter(())

    modules = parameters


@pytest.mark.parametrize(("ends", "wanted"), [(None, ["one two", "one"]), ([102, 103], ["one", "one"])])
def test_a_sample_ends_at_the_first_end_of_any_kind(ends, wanted):
    tokenizer = tokenizer_with(None)
    one, two = (tokenizer.encode(word)[0] for word in ("one", " two"))
    assert tokenizer.decode([one, two]) == "one two"
    other = tokenizer.convert_tokens_to_ids("<|im_end|>")
    ends = ends and [other]
    model = Says(
        [[one, other, two] if ends else [one, two, tokenizer.eos_token_id], [one, tokenizer.eos_token_id, two]], ends
    )
    batch = {"prompt": ["a", "b"], "input": torch.zeros(2, 1, dtype=torch.long), "attention_mask": torch.ones(2, 1)}
    assert generate(model, batch, Encoder(tokenizer, tokenizer.eos_token_id), 3) == wanted
    assert "min_new_tokens" not in model.asked


NUMBERS = [["one two three four", "five six seven eight nine"], ["ten nine", "two three four five six"]]


def samples_of(folder, texts, *more):
    "The samples of a tiny model that has learned `texts` by heart, which begin with the first word of each."
    firsts = [text.split()[0] for text in texts]
    tiny_lm.save_model(folder / "tiny")
    (folder / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts * 100))
    given = [word for word in BASE if not word.startswith(("trainer.max_steps", "task.seq_len", "optimizer.lr"))]
    given += [f"task.model={folder / 'tiny'}", f"task.data={folder / 'texts.jsonl'}", "task.seq_len=16"]
    given += ["task.lengths=dynamic", "trainer.max_steps=60", "optimizer.lr=0.01", "task.new_tokens=8"]
    given += [f"task.prompts=[{','.join(firsts)}]", f"run.dir={folder / 'runs'}", "run.console=none", *more]
    done = fit(LanguageModel(), compose(*given), show=False)
    assert done.status == "completed", done.error
    predict(LanguageModel(), done, out=folder / "samples.csv")
    return (folder / "samples.csv").read_text().splitlines()[1:]


@pytest.mark.slow
@pytest.mark.parametrize("texts", [NUMBERS[0], *(pytest.param(each, marks=pytest.mark.long) for each in NUMBERS[1:])])
def test_samples_of_a_model_that_has_learned_to_end_are_as_long_as_its_texts(tmp_path, texts):
    assert samples_of(tmp_path, texts, "launch.mode=inline") == [text.replace(" ", ",", 1) for text in texts]


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, pytest.param(4, marks=pytest.mark.long)])
def test_two_ranks_that_share_a_model_go_on_until_the_longest_sample_has_ended(tmp_path, rank):
    texts = ["one two", "five six seven eight nine", "ba be", "ten nine eight seven"]
    more = (*TWO, "distributed.strategy=fsdp", "data.eval_batch_size=1", f"task.lora_rank={rank}")
    rows = samples_of(tmp_path, texts, *more, "optimizer.lr=0.03" if rank else "optimizer.lr=0.01")
    assert [row.partition(",")[0] for row in rows] == ["one", "five", "ba", "ten"]
    assert rank or rows == [text.replace(" ", ",", 1) for text in texts]
