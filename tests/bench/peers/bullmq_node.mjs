// Driver for BullMQ on Node: the same roles, answers and payload as protocol.py, metrics on, defaults elsewhere.
// Usage: node bullmq_node.mjs ROLE URL PARAMS, with BENCH_NODE_FOLDER naming the folder that holds node_modules.
import { createRequire } from "node:module";

const require = createRequire(process.env.BENCH_NODE_FOLDER + "/");
const { Queue, Worker, MetricsTime } = require("bullmq");

const PAYLOAD_BYTES = 200, BULK = 1000, TOGETHER = 100, WARM_UP = 10;
const [role, address, text] = process.argv.slice(2);
const params = JSON.parse(text);
const url = new URL(address);
const connection = { host: url.hostname, port: Number(url.port), maxRetriesPerRequest: null };
const queue = new Queue("bench", { connection });
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const emit = (message) => process.stdout.write(JSON.stringify(message) + "\n");
const wallClock = () => (performance.timeOrigin + performance.now()) / 1000;

function payload(number, due = 0) {
  const data = { n: 1000000 + number, due, text: "" };
  const room = PAYLOAD_BYTES - JSON.stringify(data).length;
  data.text = "benchmark payload ".repeat(Math.floor(room / 18) + 1).slice(0, room);
  return data;
}

const rows = (start, end) =>
  Array.from({ length: end - start }, (_, i) => ({ name: "noop", data: payload(start + i) }));

function work(handler) {
  const metrics = { maxDataPoints: MetricsTime.ONE_WEEK };
  return new Worker("bench", handler, { connection, concurrency: params.concurrency, metrics });
}

const roles = {
  async fill() {
    for (let start = 0; start < params.jobs; start += BULK) {
      await queue.addBulk(rows(start, Math.min(start + BULK, params.jobs)));
    }
    return { jobs: params.jobs };
  },

  async drain() {
    let count = 0, began = 0, ended = 0, finish;
    const done = new Promise((resolve) => { finish = resolve; });
    const worker = work(async (job) => {
      count += 1;
      if (count === 1) began = performance.now();
      if (count === params.jobs) { ended = performance.now(); finish(); }
      return job.data.n;
    });
    await done;
    await worker.close();
    const completed = await queue.getCompletedCount();
    return { jobs: params.jobs, seconds: (ended - began) / 1000, completed };
  },

  async listen() {
    const late = [];
    let finish;
    const done = new Promise((resolve) => { finish = resolve; });
    const worker = work(async (job) => {
      late.push((wallClock() - job.data.due) * 1000);
      if (late.length === params.jobs) finish();
      return job.data.n;
    });
    await worker.waitUntilReady();
    emit({ ready: true });
    await done;
    await worker.close();
    const kept = late.slice(WARM_UP).sort((a, b) => a - b);
    const last = kept.length - 1;
    return { p50: kept[Math.floor(last / 2)], p99: kept[Math.round(last * 0.99)], max: kept[last], count: kept.length };
  },

  async pace() {
    const [low, high] = params.delay ?? [0, 0];
    for (let number = 0; number < params.jobs; number += 1) {
      const delay = low + Math.floor(Math.random() * (high - low + 1));
      await queue.add("noop", payload(number, wallClock() + delay / 1000), delay ? { delay } : {});
      await sleep(params.gap + delay);
    }
    return { jobs: params.jobs };
  },

  async add() {
    const bulk = rows(0, BULK), some = bulk.slice(0, TOGETHER);
    const step = {
      single: async () => { await queue.add("noop", some[0].data); return 1; },
      together: async () => {
        await Promise.all(some.map((row) => queue.add(row.name, row.data)));
        return TOGETHER;
      },
      bulk: async () => { await queue.addBulk(bulk); return BULK; },
    }[params.how];
    const warmUntil = performance.now() + 200;
    while (performance.now() < warmUntil) await step();
    let jobs = 0;
    const began = performance.now();
    const until = began + params.seconds * 1000;
    while (performance.now() < until) jobs += await step();
    return { jobs, seconds: (performance.now() - began) / 1000 };
  },
};

const result = await roles[role]();
await queue.close();
emit({ result });
