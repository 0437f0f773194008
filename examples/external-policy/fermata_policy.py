"""The protocol of external policies, version 1: docs/research/external-policies.md.

A policy passes its answer to the hello and a function to serve(). The function gets each request
and returns a list of decisions. Use standard error for messages; standard output is the protocol.
"""

import json
import sys

PROTOCOL = 1


def serve(decide, name, tick_s=None, include=()):
    """Answers requests until standard input is closed.

    decide is called with each request and the hello. With tick_s, it is also called every tick_s
    seconds of simulated time. include lists optional parts of requests: "attempts", "pending".
    """
    hello = json.loads(sys.stdin.readline())
    if hello["protocol"] != PROTOCOL:
        sys.exit(f"this policy has protocol {PROTOCOL}, the simulator {hello['protocol']}")
    answer = {"request": hello["request"], "protocol": PROTOCOL, "name": name}
    send({**answer, "tick_s": tick_s, "include": list(include)})
    for line in sys.stdin:
        request = json.loads(line)
        send({"request": request["request"], "decisions": decide(request, hello)})


def send(answer):
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()
