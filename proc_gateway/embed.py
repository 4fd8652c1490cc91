#!/usr/bin/env python3
"""Turns a file into a C array: embed.py INPUT OUTPUT NAME HEADER"""
import sys

source, target, name, header = sys.argv[1:5]
data = open(source, "rb").read()
with open(target, "w") as out:
    out.write(f'#include "{header}"\n\nconst unsigned char {name}[] = {{\n')
    for at in range(0, len(data), 24):
        out.write("".join(f"{byte}," for byte in data[at:at + 24]) + "\n")
    out.write(f"}};\nconst unsigned int {name}_bytes = {len(data)};\n")
