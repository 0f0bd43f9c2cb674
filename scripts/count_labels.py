#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Usage: count_labels.py BUILD LABEL...: prints how many tests of each CTest label really ran (BUILD/ctest.xml) and
fails if a LABEL ran none: skipped tests do not count."""
import collections
import json
import subprocess
import sys
import xml.etree.ElementTree

build, required = sys.argv[1], sys.argv[2:]
listing = json.loads(subprocess.run(["ctest", "--test-dir", build, "--show-only=json-v1"], check=True,
                                    capture_output=True, text=True).stdout)
labels = {test["name"]: property["value"] for test in listing["tests"] for property in test.get("properties", [])
          if property["name"] == "LABELS"}
ran, skipped = collections.Counter(), []
for case in xml.etree.ElementTree.parse(build + "/ctest.xml").getroot().iter("testcase"):
    if case.get("status") in ("run", "fail"):
        ran.update(labels.get(case.get("name"), []))
    else:
        skipped.append(case.get("name"))
for label in sorted(set(required) | set(ran)):
    print(f"label {label}: {ran[label]} ran")
for name in sorted(skipped):
    print(f"skipped: {name}")
missing = [label for label in required if ran[label] == 0]
if missing:
    sys.exit("no test ran for: " + " ".join(missing))
