// The npm client of bunqueue as producer and as worker: `bun gateway_npm_client.mjs PORT`.
const { Queue, QueueEvents, Worker } = await import(process.env.BUNQUEUE_CLIENT ?? "bunqueue/client");
const connection = { host: "127.0.0.1", port: Number(process.argv[2]) };

// A job for a Python worker.
const mails = new Queue("mails", { connection });
const events = new QueueEvents("mails", { connection });
await events.waitUntilReady();
const job = await mails.add("welcome", { to: "ada@example.org" }, { attempts: 3 });
console.log("npm client added a job for Python");
console.log("npm client got:", await job.waitUntilFinished(events, 30_000));

// Jobs of a Python program.
const finished = new Promise((resolve) => {
  const worker = new Worker("reports", async (job) => ({ pages: job.data.year - 2000 }), { connection, pollTimeout: 1_000 });
  worker.on("error", () => {});
  worker.on("completed", (job) => {
    console.log("npm worker completed:", job.name);
    resolve(worker);
  });
});
await (await finished).close();
await events.close();
await mails.close();
process.exit(0);
