"""First in, first out: the built-in policy `fifo` as an external one, with the same decisions."""

from fermata_policy import serve

PRIORITIES = ["very-high", "high", "normal", "low", "very-low"]


def decide(request, _hello):
    if request["type"] != "offer":
        return []
    # Jobs come in the order of their submission, and sorting is stable.
    jobs = sorted(request["jobs"], key=lambda job: PRIORITIES.index(job["priority"]))
    for phase in ("map", "reduce"):
        if request["free"][phase] == 0:
            continue
        for at, job in enumerate(jobs):
            # Reduces whose maps wait behind those of another job would only hold their slots.
            ahead = jobs[:at] if phase == "reduce" and job["map"]["startable"] > 0 else []
            held_up = any(other["map"]["startable"] > 0 for other in ahead)
            following = job[phase]["next"]
            if following and not held_up:
                near = "," + following["locality"] if phase == "map" else ""
                return [{"launch": following["task"], "why": "first-in-queue" + near}]
        for job in request["jobs"]:
            if job[phase]["straggler"]:
                return [{"launch": job[phase]["straggler"], "why": "straggler"}]
    return []


if __name__ == "__main__":
    serve(decide, "fifo")
