#!/usr/bin/env python3
"""Compares what language parts may leave out of config.json (PART_DEFAULTS in proc_worker/model/config_parts.c) with the defaults of transformers'
configuration classes.

part_defaults.py [CONFIG_PARTS_C]. Exit 77 (skipped) without transformers; 1 if a value differs, naming it."""
import json
import pathlib
import re
import sys

try:
    from transformers import CONFIG_MAPPING
except ImportError:
    print("transformers is not there")
    sys.exit(77)

SOURCE = pathlib.Path(__file__).parents[3] / "proc_worker/model/config_parts.c"
# Of families whose files call them otherwise.
NAMES = {"lfm2": {"rms_norm_eps": "norm_eps"}, "glm4v_moe_text": {"num_experts": "n_routed_experts"},
         "hy_v4_vl_text": {"num_experts": "n_routed_experts"},
         "step3p5": {"num_experts": "n_routed_experts", "shared_expert_intermediate_size": "share_expert_dim"},
         "qwen2_5_omni_text": {"rope_theta": "default_theta"}}
EVERY = {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings"}


def table(path):
    """{model_type: {field: value}}"""
    rows = pathlib.Path(path).read_text().partition("PART_DEFAULTS[] = {")[2].partition("\n};")[0]
    found = re.findall(r'\{"(\w+)",\s*((?:"(?:[^"\\]|\\.)*"\s*)+)\}', rows)
    return {name: json.loads("".join(json.loads(part) for part in re.findall(r'"(?:[^"\\]|\\.)*"', text))) for name, text in found}


def main():
    rows, wrong = table(sys.argv[1] if len(sys.argv) > 1 else SOURCE), 0
    assert len(rows) >= 8, rows
    for model_type, fields in rows.items():
        missing = EVERY - set(fields)
        if missing:
            print("%s: not in the table: %s" % (model_type, ", ".join(sorted(missing))))
            wrong += 1
        theirs = CONFIG_MAPPING[model_type]()
        for field, value in fields.items():
            wanted = getattr(theirs, NAMES.get(model_type, {}).get(field, field))
            if wanted != value:
                print("%s: %s is %r here, %r there" % (model_type, field, value, wanted))
                wrong += 1
    print("%d configuration classes, %d differences" % (len(rows), wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
