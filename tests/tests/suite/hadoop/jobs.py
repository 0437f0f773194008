"""Jobs for mrjob that its examples do not cover: counters, values in order, a step that fails."""
from mrjob.job import MRJob
from mrjob.step import MRStep


class Jobs(MRJob):
    # The reducer gets the values of each key sorted: keys of two fields, partitioned by the first.
    SORT_VALUES = True

    def configure_args(self):
        super().configure_args()
        self.add_passthru_arg("--fail", action="store_true")
        self.add_file_arg("--table")

    def steps(self):
        return [
            MRStep(mapper=self.by_letter, reducer=self.join),
            MRStep(mapper=self.check, jobconf={"mapreduce.map.maxattempts": "1"}),
        ]

    def by_letter(self, _, line):
        for word in line.split():
            self.increment_counter("words", "read, of all lengths", 1)
            yield word[0], word

    def join(self, letter, words):
        words = list(words)
        assert words == sorted(words), words
        yield letter, " ".join(words)

    def check(self, letter, words):
        if self.options.fail:
            raise ValueError("fails on purpose")
        with open(self.options.table) as table:
            yield letter, [words, table.read().strip()]


if __name__ == "__main__":
    Jobs.run()
