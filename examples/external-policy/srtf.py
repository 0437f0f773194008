"""Shortest remaining time first, with lossless preemption.

The remaining work of a job is the number of its tasks that have not succeeded, times the mean
duration of those that have. A phase without a finished task counts as the parameter `guess` per
task. Free slots go to the job with the least remaining work. Every second, each job that waits
without a free slot preempts slots of jobs with at least `factor` times its remaining work, if they
have run for `protect` seconds.
"""

from fermata_policy import serve


def remaining_s(job, guess_s):
    def phase_s(phase):
        left = phase["total"] - phase["succeeded"]
        return left * (guess_s if phase["mean_s"] is None else phase["mean_s"])

    return phase_s(job["map"]) + phase_s(job["reduce"])


def decide(request, hello):
    params = hello["params"]
    guess_s = float(params.get("guess", 20))
    work_s = {job["job"]: remaining_s(job, guess_s) for job in request["jobs"]}
    # Ties go to the older job: sorting is stable.
    jobs = sorted(request["jobs"], key=lambda job: work_s[job["job"]])
    if request["type"] == "offer":
        return launch(request, jobs, work_s)
    factor, protect_s = float(params.get("factor", 2)), float(params.get("protect", 10))
    return preempt(request, jobs, work_s, factor, protect_s)


def launch(request, jobs, work_s):
    for phase in ("map", "reduce"):
        if request["free"][phase] == 0:
            continue
        for job in jobs:
            if job[phase]["next"]:
                why = f"least-remaining-work work_s={work_s[job['job']]:.3f}"
                return [{"launch": job[phase]["next"]["task"], "why": why}]
        for job in request["jobs"]:
            if job[phase]["straggler"]:
                return [{"launch": job[phase]["straggler"], "why": "straggler"}]
    return []


def preempt(request, jobs, work_s, factor, protect_s):
    decisions = []
    for phase, letter in (("map", "m"), ("reduce", "r")):
        # Slots that are free, or that earlier preemptions will free.
        coming = sum(job[phase]["held"] - job[phase]["retained"] for job in request["jobs"])
        supply = request["slots"][phase]["free"] + coming
        running = [one for one in request["attempts"] if one["attempt"].split(".")[1][0] == letter]
        victims = [
            one
            for one in running
            if not (one["preempted"] or one["just_resumed"])
            and one["lossless"]
            and request["time_s"] - one["launched_s"] >= protect_s
        ]
        # From the job with the most remaining work, and there the attempt with the least progress.
        victims.sort(key=lambda one: (work_s[owner(one)], -one["progress"]))
        for job in jobs:
            wanted = job[phase]["startable"]
            own = min(wanted, supply)
            supply -= own
            for _ in range(wanted - own):
                if not victims or work_s[owner(victims[-1])] < factor * work_s[job["job"]]:
                    break
                why = f"more-remaining-work for_job={job['job'].removeprefix('job_')}"
                decisions.append({"preempt": victims.pop()["attempt"], "why": why})
    return decisions


def owner(attempt):
    return attempt["attempt"].split(".")[0]


if __name__ == "__main__":
    serve(decide, "srtf", tick_s=1, include=["attempts"])
