"""Usage and cost: tokens and money, reported by handlers, read per job, summed per period."""

import asyncio
from datetime import timedelta

from glidemq_py import Job, Queue, TokenLimiter, Worker

PRICES = {"small": 0.5, "large": 5.0}  # USD for a million tokens


async def answer(job: Job) -> str:
    model = job.name
    tokens = {"input": len(job.data) * 100, "output": 50}  # as reported by the model's API
    price = PRICES[model] / 1_000_000
    await job.report_usage(
        model=model,
        provider="example",
        tokens=tokens,
        costs={category: number * price for category, number in tokens.items()},
        cost_unit="USD",
        latency=timedelta(milliseconds=420),
    )
    return "42"


async def main() -> None:
    questions = Queue[str, str]("questions")
    # No job starts while the jobs of this minute have used 100,000 tokens.
    limiter = TokenLimiter(max_tokens=100_000, duration=60_000)
    async with questions, Worker("questions", answer, token_limiter=limiter):
        jobs = [await questions.add(model, "why?" * 5) for model in ("small", "small", "large")]
        for job in jobs:
            await job.wait_until_finished()

        finished = await questions.get_job(jobs[-1].id)
        if finished and (last := finished.usage):
            print(f"{last.model}: {last.total_tokens} tokens, {last.total_cost:.5f} {last.cost_unit}")

        hour = await questions.usage.get_summary(window=timedelta(hours=1))
        print(f"{hour.job_count} jobs: {hour.total_tokens:.0f} tokens, {hour.total_cost:.5f} {hour.cost_unit}")
        print("by model:", dict(sorted(hour.models.items())))


if __name__ == "__main__":
    asyncio.run(main())
