"""LoRA adapters beside the demo: an adapter answers as the model that it is merged into, whatever shares the batch, dies,
is preempted or cached; and what cannot be served is refused at the start."""
import concurrent.futures
import re

import pytest

import wire
from api import ApiError, joined
from engine import DEMO, ROOT, SANITIZED, Engine, free_ports, killed_amid, run
from lora_files import LAYERS, Adapter

PROMPTS = ["Once upon a time", "The little dog", "In the deep forest there was"]
ALL = range(LAYERS)
ADAPTERS = {"first": Adapter(1, {"self_attn.q_proj": ALL, "self_attn.v_proj": ALL, "self_attn.o_proj": ALL}),
            "second": Adapter(2, {"self_attn.k_proj": ALL, "mlp.gate_proj": [0], "mlp.up_proj": [5], "mlp.down_proj": [2]},
                              rank=3, alpha=9)}
TINY = ["--max-model-len", "330", "--kv-cache-memory", "2MiB"]
WHO = [None, "first", "second"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    home = tmp_path_factory.mktemp("adapters")
    return {name: a.write(home / name) for name, a in ADAPTERS.items()}


def flags(folders, *more):
    return ["--dtype", "float32", "--enable-lora", "--lora-modules", "first=%s" % folders["first"],
            '{"name": "second", "path": "%s"}' % folders["second"], "--served-model-name", "demo", *more]


@pytest.fixture(scope="module")
def engine(folders):
    with Engine(*flags(folders)) as e:
        yield e


@pytest.fixture(scope="module")
def api(engine):
    return engine.api


def named(who, **fields):
    return {"model": who, **fields} if who else fields


def greedy(api, who, count=40):
    return [api.greedy_ids(p, count, **named(who)) for p in PROMPTS]


@pytest.fixture(scope="module")
def merged(tmp_path_factory):
    """What the model and those with an adapter inside say."""
    found, home = {}, tmp_path_factory.mktemp("merged")
    for who in WHO:
        with Engine("--dtype", "float32", model=ADAPTERS[who].merge(home / who) if who else DEMO) as e:
            found[who] = greedy(e.api, None)
    assert len({str(ids) for ids in found.values()}) == 3, "adapters that change nothing test nothing"
    return found


def test_an_adapter_answers_as_if_it_was_merged(api, merged):
    for who in WHO:
        assert greedy(api, who) == merged[who], who


def test_two_ranks_answer_the_same(folders, merged):
    with Engine(*flags(folders, "--tensor-parallel-size", 2)) as e, concurrent.futures.ThreadPoolExecutor(3) as pool:
        for who, ids in zip(WHO, pool.map(lambda who: greedy(e.api, who), WHO)):
            assert ids == merged[who], who


KINDS = [{"temperature": 0.9, "seed": 5, "n": 2}, {"use_beam_search": True, "n": 2, "temperature": 0},
         {"guided_regex": "([a-z]{2,5} [0-9]{2},){4}", "temperature": 1.0, "seed": 2},
         {"temperature": 0, "logprobs": 2, "prompt": " ".join(PROMPTS) * 12}]


def outcome(api, who, fields):
    reply = api.call("POST", "/v1/completions", named(who, **{"prompt": PROMPTS[0], "max_tokens": 30, "ignore_eos":
                     "guided_regex" not in fields, "return_token_ids": True, **fields}))
    assert reply["model"] == (who or "demo")
    return [c["token_ids"] for c in reply["choices"]]


@pytest.mark.parametrize("more", [TINY + ["--swap-space", "0.01"], ["--async-depth", "0", "--max-num-batched-tokens", "48"],
                                  TINY + ["--tensor-parallel-size", "2"]][:1 if SANITIZED else None],
                         ids=lambda more: "_".join(more[-2:]).strip("-") or "default")
def test_what_shares_the_batch_changes_nothing(api, folders, more):
    """Samples, searches, grammars and long prompts of all three, alone on one engine and at once on another."""
    asked = [(who, kind) for kind in KINDS for who in WHO]
    wanted = [outcome(api, *a) for a in asked]
    with Engine(*flags(folders, *more)) as e, concurrent.futures.ThreadPoolExecutor(2 * len(asked)) as pool:
        # of each the second finds what the prefix cache has of the first
        assert list(pool.map(lambda a: outcome(e.api, *a), asked * 2)) == wanted * 2
    assert len({str(w) for w in wanted}) == len(wanted)


def cached(api, who, prompt):
    usage = api.completions(prompt, max_tokens=2, temperature=0, **named(who))["usage"]
    return usage["prompt_tokens_details"]["cached_tokens"]


def test_no_block_of_the_cache_is_shared_between_adapters(api):
    prompt = "A king and his queen lived in a castle by the sea. " * 8
    for who in WHO:
        assert cached(api, who, prompt) == 0, who
    for who in WHO:
        assert cached(api, who, prompt) >= 64, who


def test_a_session_goes_on_with_whichever_adapter_is_asked_for(api):
    text = "The old ship sailed over the sea to an island where"
    first = api.completions(text, session_id="s", session_start=True, max_tokens=20, temperature=0, ignore_eos=True,
                            return_token_ids=True, return_tokens_as_token_ids=False, **named("first"))["choices"][0]
    history = api.call("POST", "/tokenize", {"prompt": text})["tokens"] + first["token_ids"]
    for who in ("first", None):
        more = api.call("POST", "/tokenize", {"prompt": " and then", "add_special_tokens": False})["tokens"]
        reply = api.completions(more, session_id="s", max_tokens=12, temperature=0, ignore_eos=True, return_token_ids=True,
                                **named(who))["choices"][0]
        assert reply["token_ids"] == api.greedy_ids(history + more, 12, **named(who)), who
        history += more + reply["token_ids"]


def test_models_are_listed_with_what_they_are_put_beside(api, folders):
    listed = {m["id"]: m for m in api.call("GET", "/v1/models")["data"]}
    assert [(n, m["parent"]) for n, m in listed.items()] == [("demo", None), ("first", "demo"), ("second", "demo")]
    assert listed["first"]["root"] == str(folders["first"])
    assert api.call("GET", "/v1/models/second")["parent"] == "demo"
    for call in (lambda: api.completions("x", model="third"), lambda: api.call("GET", "/v1/models/third")):
        with pytest.raises(ApiError) as e:
            call()
        assert e.value.status == 404 and "'demo', 'first', 'second'" in e.value.message


def test_a_client_without_http_names_adapters_too(engine, merged):
    ids = engine.api.call("POST", "/tokenize", {"prompt": PROMPTS[0]})["tokens"]
    with wire.Client(engine.run_dir, ROOT / "docs" / "MESSAGES.md", 91) as client:
        number = client.submit(ids, max_tokens=40, flags=wire.SKIP_SPECIAL | 1, lora=b"second")
        client.read_until_finished(number)
        assert client.requests[number].tokens == merged["second"][0]


@pytest.mark.skipif(SANITIZED, reason="e2e/lifecycle kills one of them under sanitizers")
@pytest.mark.parametrize("name", ["tercet-worker", "tercet-scheduler", "tercet-detok"])
def test_a_killed_process_takes_no_adapter_along(folders, api, name):
    fields = {"max_tokens": 400, "temperature": 0.8, "seed": 9, "ignore_eos": True, "return_token_ids": True}

    def ask(server, who):
        return joined(server.stream(prompt=PROMPTS[0], **named(who, **fields)))[0]["token_ids"]
    wanted = [ask(api, who) for who in WHO]
    with Engine(*flags(folders)) as e, concurrent.futures.ThreadPoolExecutor(3) as pool:
        assert killed_amid(e, name, lambda: list(pool.map(lambda who: ask(e.api, who), WHO)), 2) == wanted


def test_the_command_line_takes_an_adapter(folders):
    """`tercet logits` and `tercet run`."""
    words = ["logits", "--model", DEMO, "--ids", "5,17,3", "--top", "3", "--dtype", "float32"]
    texts = [run(*words), run(*words, "--enable-lora", "--lora-modules", "a=%s" % folders["first"])]
    assert [status for status, _ in texts] == [0, 0] and texts[0] != texts[1]
    status, text = run("run", DEMO, PROMPTS[0], "--lora", folders["first"], "--temperature", 0, "--max-tokens", 8,
                       "--dtype", "float32", "--threads", 1, "--kv-cache-memory", "64MiB")
    plain = run("run", DEMO, PROMPTS[0], "--temperature", 0, "--max-tokens", 8, "--dtype", "float32", "--threads", 1,
                "--kv-cache-memory", "64MiB")[1]
    assert status == 0 and text != plain, text


def start_fails(tmp_path, *more):
    status, output = run("serve", DEMO, "--port", free_ports(), "--run-dir", tmp_path / "run", "--threads", "1",
                         "--kv-cache-memory", "64MiB", *more)
    assert status not in (0, None), output
    return output


@pytest.mark.parametrize("items, more, text", [
    (["x"], ["--enable-lora"], "it must be NAME=PATH"),
    (["a={first}"], [], "--enable-lora is not given"),
    (["a={first}", "a={second}"], ["--enable-lora"], 'two adapters "a"'),
    (["demo={first}"], ["--enable-lora"], "is the model's own name"),
    (["a={first}", "b={second}"], ["--enable-lora", "--max-loras", "1"], "--max-loras is 1"),
    (["a={first}"], ["--enable-lora", "--max-lora-rank", "3"], "has rank 4; --max-lora-rank is 3"),
    (["a=/nowhere"], ["--enable-lora"], "adapter \"a\" (/nowhere): there is no adapter_config.json"),
    (['{{"name": "a", "path": "{first}", "base_model_name": "other"}}'], ["--enable-lora"], "base_model_name"),
    (['{{"name": "a", "pth": "{first}"}}'], ["--enable-lora"], '"pth"'),
])
def test_what_cannot_be_served_is_said_at_the_start(tmp_path, folders, items, more, text):
    items = [i.format(**folders) for i in items]
    output = start_fails(tmp_path, *more, "--lora-modules", *items)
    assert text in re.sub(r'\\"', '"', output), output
