// The npm client, for test_npm_client.py: `bun npm_client.mjs both|add|work|values PORT QUEUE`.
const { Queue, Worker } = await import(process.env.BUNQUEUE_CLIENT);
const [what, port, name] = process.argv.slice(2);
const connection = { host: "127.0.0.1", port: Number(port) };
const print = (value) => console.log(JSON.stringify(value));

const work = (wanted) =>
  new Promise((resolve) => {
    let ended = 0;
    const handler = async (job) => {
      if (job.name === "fail") throw new Error("on purpose");
      return { doubled: job.data.n * 2 };
    };
    const worker = new Worker(name, handler, { connection, concurrency: 1 });
    const end = (result) => {
      ended += 1;
      if (ended === wanted) resolve([worker, result, ended]);
    };
    worker.on("completed", (_, result) => end(result));
    worker.on("failed", () => end());
    worker.on("error", () => {});
  });

const queue = new Queue(name, { connection });
const kind = (value) => value?.constructor?.name;
if (what === "values") {
  const data = { date: new Date(1767225600000), bytes: new Uint8Array([0, 255]), map: new Map([[1, "one"]]), nan: NaN, big: 2 ** 40 };
  const seen = new Promise((resolve) => {
    const worker = new Worker(name, async (job) => job.data, { connection, concurrency: 1 });
    worker.on("completed", (job, result) => resolve([worker, job.data, result]));
    worker.on("error", () => {});
  });
  const job = await queue.add("values", data);
  const [worker, given, returned] = await seen;
  await worker.close();
  const stored = (await queue.getJob(job.id)).returnvalue;
  for (const each of [given, returned, stored]) {
    print([kind(each.date), each.date.getTime(), [...each.bytes], Object.fromEntries(each.map instanceof Map ? each.map : Object.entries(each.map)), Number.isNaN(each.nan), each.big]);
  }
} else if (what === "work") {
  const [worker, , ended] = await work(2);
  await worker.close();
  print(ended);
} else {
  const job = await queue.add("double", { n: 21 }, { priority: 3, attempts: 2, removeOnComplete: false });
  if (what === "both") {
    const [worker, result] = await work(1);
    await worker.close();
    print(result);
  }
  let state;
  while ((state = await queue.getJobState(job.id)) !== "completed") await new Promise((next) => setTimeout(next, 20));
  print(state);
  if (what === "add") print((await queue.getJob(job.id)).returnvalue);
}
await queue.close();
process.exit(0);
