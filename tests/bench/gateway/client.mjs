// The measured client of the benchmark: `bun client.mjs MEASURE PORT QUEUE JSON`. It is the unmodified npm client for
// bunqueue and for the gateway. It prints one JSON object: operations per second, or latencies in ms.
const { Queue, Worker } = await import(process.env.BUNQUEUE_CLIENT);
const [measure, port, name, json] = process.argv.slice(2);
const params = JSON.parse(json);
const connection = { host: "127.0.0.1", port: Number(port) };
const data = { payload: "x".repeat(90), n: 1 };
const now = () => performance.now();
const options = params.autoBatch === false ? { connection, autoBatch: { enabled: false } } : { connection };
const queue = new Queue(name, options);

const addAll = async (count) => {
  const jobs = Array.from({ length: 250 }, () => ({ name: "bench", data }));
  for (let left = count; left > 0; left -= 250) await queue.addBulk(jobs.slice(0, left));
};

const measures = {
  // Adds, `inFlight` at a time.
  add: async ({ seconds, inFlight, durable }) => {
    let count = 0;
    const began = now();
    const until = began + seconds * 1000;
    const producer = async () => {
      while (now() < until) {
        await queue.add("bench", data, { durable });
        count += 1;
      }
    };
    await Promise.all(Array.from({ length: inFlight }, producer));
    return { rate: (count * 1000) / (now() - began), count };
  },
  addBulk: async ({ seconds, size }) => {
    const jobs = Array.from({ length: size }, () => ({ name: "bench", data }));
    let count = 0;
    const began = now();
    while (now() < began + seconds * 1000) {
      const added = await queue.addBulk(jobs);
      if (added.length !== size) throw new Error(`addBulk returned ${added.length}`);
      count += size;
    }
    return { rate: (count * 1000) / (now() - began), count };
  },
  // Jobs per second of a worker, from its start until all jobs are completed.
  work: async ({ jobs, concurrency }) => {
    await addAll(jobs);
    const began = now();
    const [worker, ended] = await new Promise((resolve, reject) => {
      let count = 0;
      const worker = new Worker(name, async () => null, { connection, concurrency });
      worker.on("completed", () => {
        count += 1;
        if (count === jobs) resolve([worker, now()]);
      });
      worker.on("failed", (_, error) => reject(error));
      worker.on("error", () => {});
    });
    await worker.close();
    return { rate: (jobs * 1000) / (ended - began), count: jobs };
  },
  fill: async ({ jobs }) => {
    await addAll(jobs);
    return { count: jobs };
  },
  // Ids of the jobs that a worker has completed, until none has come for a second.
  drain: async ({ concurrency }) => {
    const ids = [];
    let last = now();
    const worker = new Worker(name, async () => null, { connection, concurrency });
    worker.on("completed", (job) => {
      ids.push(job.id);
      last = now();
    });
    worker.on("error", () => {});
    while (now() < last + 1500) await new Promise((next) => setTimeout(next, 50));
    await worker.close();
    return { ids };
  },
  // From add to the start of the handler, of an idle worker with long polls.
  pickUp: async ({ jobs }) => {
    let started;
    const worker = new Worker(name, async () => started(now()), { connection, concurrency: 1, pollTimeout: 5000 });
    worker.on("error", () => {});
    const times = [];
    for (let i = 0; i < jobs; i += 1) {
      await new Promise((next) => setTimeout(next, 20));
      const start = new Promise((resolve) => (started = resolve));
      const began = now();
      await queue.add("bench", data);
      times.push((await start) - began);
    }
    await worker.close(true);
    times.sort((a, b) => a - b);
    return { p50: times[Math.floor(jobs * 0.5)], p99: times[Math.floor(jobs * 0.99)], count: jobs };
  },
};

console.log(JSON.stringify(await measures[measure](params)));
process.exit(0);
