// Further methods of the npm client that reach the wire, for test_transcript.py: `bun npm_more_methods.mjs PORT QUEUE CONNECTIONS`.
const { Queue, QueueEvents, QueueGroup, Worker, FlowProducer } = await import(process.env.BUNQUEUE_CLIENT);
const [port, name, poolSize] = process.argv.slice(2);
const connection = { host: "127.0.0.1", port: Number(port), poolSize: Number(poolSize) };
const ids = new Map();
const UUID = /[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}/g;
const tidy = (v) => JSON.parse(JSON.stringify(v ?? null, (k, x) => {
  if (typeof x === "string") { let s = x.replaceAll(name, "Q"); for (const [i, n] of ids) s = s.replaceAll(i, n); return s.replace(UUID, "UUID"); }
  if (typeof x === "number" && x > 1e12) return "TIME";
  return x;
}).replaceAll(UUID, "UUID"));
const open = new Set();
// A worker of a failed step would process jobs of the next ones.
const closeOpen = () => Promise.all([...open].map((w) => w.close(true)));
const step = async (label, f) => { let out; try { out = tidy(await Promise.race([f(), new Promise((_, no) => setTimeout(() => no(new Error("TIMEOUT")), 30000))])); } catch (e) { out = { error: tidy(String(e?.message ?? e)) }; await closeOpen(); } console.log(JSON.stringify([label, label === "other options" ? Object.fromEntries(out) : out])); };
const until = async (f) => { while (!(await f())) await new Promise((next) => setTimeout(next, 20)); };
const events = new QueueEvents(name, { connection });
events.on("error", () => {});
await events.waitUntilReady();
const q = new Queue(name, { connection });
q.on?.("error", () => {});
const add = async (label, n, d, o) => { const j = await q.add(n, d, o); ids.set(j.id, label); return j; };
const worker = (f, o) => { const w = new Worker(name, f, { connection, concurrency: 1, autorun: true, ...o }); w.on("error", () => {}); open.add(w); w.on("closed", () => open.delete(w)); return w; };
const manual = new Worker(name, async () => {}, { connection, autorun: false });
manual.on("error", () => {});
let n = 0;
const started = async (o) => { n += 1; const j = await add("J" + n, "manual", { n }, { attempts: 1, ...o }); const got = await manual.getNextJob(); return [j, got, got?.token]; };

// -- jobs that are fetched by hand
await step("getNextJob", async () => { const [j, got, token] = await started(); const r = [got?.id === j.id, typeof token, await j.getState()]; await q.moveJobToCompleted(got.id, { r: 1 }, token); return [...r, await j.getState(), (await q.getJob(j.id)).returnvalue]; });
await step("moveJobToFailed", async () => { const [j, got, token] = await started(); await q.moveJobToFailed(got.id, new Error("bad"), token); return [await j.getState(), (await q.getJob(j.id)).failedReason]; });
await step("retryJob", async () => { const j = [...ids.keys()].at(-1); await q.retryJob(j); return q.getJobState(j); });
await step("moveJobToWait", async () => { const got = await manual.getNextJob(); await q.moveJobToWait(got.id, got.token); return q.getJobState(got.id); });
await step("moveJobToDelayed", async () => { const got = await manual.getNextJob(); await q.moveJobToDelayed(got.id, Date.now() + 60000, got.token); return q.getJobState(got.id); });
await step("promote", async () => { const j = await q.getJob([...ids.keys()].at(-1)); await j.promote(); return j.getState(); });
await step("extendJobLock", async () => { const got = await manual.getNextJob(); const r = [await q.extendJobLock(got.id, got.token, 60000), await got.extendLock(got.token, 60000), await manual.extendJobLocks([got.id], [got.token], 60000)]; await q.updateJobProgress(got.id, 40); r.push((await q.getJob(got.id)).progress); await got.moveToCompleted(7, got.token); return [...r, (await q.getJob(got.id)).returnvalue]; });
await step("moveToFailed", async () => { const [j, got, token] = await started(); await got.moveToFailed(new Error("worse"), token); return [await j.isFailed(), (await q.getJob(j.id)).failedReason]; });
await step("retryJobs", async () => { const r = await q.retryJobs(); return [r, (await q.getJobCountsAsync()).failed]; });
await step("discard", async () => { const got = await manual.getNextJob(); const j = await q.getJob(got.id); await j.discard(); await q.moveJobToFailed(got.id, new Error("x"), got.token).catch(() => {}); return j.getState(); });
await step("getDlqJobsAsync", async () => (await q.getDlqJobsAsync?.())?.length);
await step("retryDlqByFilterAsync", async () => [await q.retryDlqByFilterAsync({ reason: "timeout" }), await q.retryDlqByFilterAsync({})]);
await step("drain", () => q.drainAsync());
await step("purge", async () => typeof (await q.purgeDlqAsync()));

// -- methods of jobs
await step("job", async () => { const j = await add("A", "a", { n: 1 }, { priority: 3 }); await j.updateData({ n: 2 }); await j.changePriority({ priority: 8 }); await j.log("one"); await j.log("two"); await j.clearLogs(1); const k = await q.getJob(j.id); return [k.data, k.priority, await j.isWaiting(), await j.isActive(), await j.isDelayed(), await j.isCompleted(), await j.isFailed(), await j.isWaitingChildren(), (await q.getJobLogs(j.id)).count, k.toJSON().name, Object.keys(k.asJSON()).sort()]; });
await step("changeDelay", async () => { const j = await add("B", "b", {}, { delay: 90000 }); await j.changeDelay(120000); const r = [await j.isDelayed()]; await j.promote(); return [...r, await j.getState()]; });
await step("remove", async () => { const j = await add("C", "c", {}); await j.remove(); return [await j.getState(), (await q.getJob(j.id)) ?? null]; });
await step("removeDeduplicationKey", async () => { const j = await add("D", "d", {}, { deduplication: { id: "dd" } }); const r = [await j.removeDeduplicationKey()]; const k = await add("D2", "d", {}, { deduplication: { id: "dd" } }); return [...r, j.id === k.id]; });
await step("durable", async () => (await add("E", "e", {}, { durable: true })).name);
await step("without batches", async () => { const p = new Queue(name, { connection, autoBatch: { enabled: false } }); const j = await p.add("f", { f: 1 }); ids.set(j.id, "F"); return [(await q.getJob(j.id)).data]; });
await step("many at once", async () => { const r = await Promise.all(Array.from({ length: 60 }, (_, i) => q.add("m", { i }))); return [r.length, new Set(r.map((j) => j.id)).size]; });
await step("addBulk with ids", async () => (await q.addBulk([{ name: "i1", data: {}, opts: { jobId: name + "-i1" } }, { name: "i2", data: {}, opts: { jobId: name + "-i2", delay: 5000 } }])).map((j) => [j.id, j.name]));
await step("bad options", async () => { const r = []; for (const o of [{ priority: 1e9 }, { delay: -1 }, { attempts: 0 }, { timeout: 1e12 }]) r.push(await q.add("x", {}, o).then(() => "added", (e) => e.message)); return r; });
await step("getJobs", async () => (await q.getJobsAsync({ state: "waiting", start: 0, end: 3, asc: true })).map((j) => j.name));
await step("getJobSchedulersCount", async () => { await q.upsertJobScheduler(name + "-c", { every: 3600000 }, { name: "tick" }); return [await q.getJobSchedulersCount(), await q.removeJobScheduler(name + "-c"), await q.getJobSchedulersCount()]; });
await step("rateLimit", async () => { await q.rateLimit(60000); const ttl = await q.getRateLimitTtl(); const got = await manual.getNextJob(); await q.removeGlobalRateLimitAsync(); if (got) await q.moveJobToCompleted(got.id, 1, got.token); return [ttl > 50000, got?.name ?? null]; });
await step("drain again", () => q.drainAsync());

// -- options
await step("removeOnComplete", async () => { const [j, got, token] = await started({ removeOnComplete: true }); await q.moveJobToCompleted(got.id, 1, token); return j.getState(); });
await step("lifo", async () => { await add("L1", "l1", {}); await add("L2", "l2", {}, { lifo: true }); const got = [await manual.getNextJob(), await manual.getNextJob()]; for (const g of got) await q.moveJobToCompleted(g.id, 1, g.token); return got.map((g) => g.name); });
await step("data above sizeLimit", () => q.add("o", { text: "longer than ten" }, { sizeLimit: 10 }).then(() => "added", (e) => e.message));
await step("other options", async () => { const r = []; for (const [k, o] of Object.entries({ keepLogs: { keepLogs: 5 }, stackTraceLimit: { stackTraceLimit: 3 }, sizeLimit: { sizeLimit: 100 }, stallTimeout: { stallTimeout: 5000 }, debounce: { debounce: { id: "deb", ttl: 60000 } }, tags: { tags: ["a"] }, group: { group: { id: "gg" } }, ttl: { ttl: 60000 }, timeout: { timeout: 5000 }, backoff: { backoff: { type: "fixed", delay: 10 } }, repeat: { repeat: { every: 3600000, limit: 2 } } })) r.push([k, await q.add("o", { text: "longer than ten" }, o).then((j) => (ids.set(j.id, k), "added"), (e) => e.message)]); return r; });
await step("debounce again", async () => { const a = await q.add("deb", {}, { debounce: { id: "deb", ttl: 60000 } }); return ids.get(a.id) ?? "another"; });
await step("obliterate", () => q.obliterateAsync({ force: true }));

// -- groups
await step("groups", async () => { for (const g of ["x", "x", "y"]) await q.add("g", { g }, { group: { id: g } }); return [await q.getGroupJobsCount("x"), await q.getGroupsJobsCount(), await q.getGroupActiveCount("x"), await q.getGroupRateLimitTtl("x")]; });
await step("group jobs", async () => [(await q.getGroupJobs?.("x"))?.length ?? null, (await q.getCountsPerPriorityForGroup?.("x")) ?? null]);
await step("group maxSize", async () => q.add("g", {}, { group: { id: "x", maxSize: 2 } }).then(() => "added", (e) => e.message));
await step("groups in turn", async () => { await q.setGroupConcurrency("x", 1); let most = 0, now = 0, done = 0; const w = worker(async () => { now += 1; most = Math.max(most, now); await new Promise((next) => setTimeout(next, 60)); now -= 1; done += 1; }, { concurrency: 5 }); await until(() => done === 3); await w.close(); return done; });

// -- workers
await step("worker of batches", async () => { await q.addBulk(Array.from({ length: 6 }, (_, i) => ({ name: "w" + i, data: { i } }))); const seen = []; const w = worker(async (j) => { seen.push(j.name); return j.data.i; }, { concurrency: 3, batchSize: 3, pollTimeout: 1000 }); await until(() => seen.length === 6); await until(async () => (await q.getJobCountsAsync()).active === 0); await w.close(); return seen.sort(); });
await step("cancelJob", async () => { const j = await add("CJ", "long", {}, { attempts: 1 }); let started = false, signal = false; const w = worker(async (job) => { started = true; for (let i = 0; i < 200; i++) { if (w.isJobCancelled(job.id)) { signal = true; throw new Error("cancelled"); } await new Promise((next) => setTimeout(next, 20)); } }); await until(() => started); const r = [w.cancelJob(j.id), await j.getState()]; await until(async () => (await j.getState()) === "failed"); await w.close(); return [...r, signal]; });
await step("unrecoverable", async () => { const { UnrecoverableError } = await import(process.env.BUNQUEUE_CLIENT); const j = await add("UR", "ur", {}, { attempts: 5 }); const w = worker(async () => { throw new UnrecoverableError("never"); }); await until(async () => (await j.getState()) === "failed"); await w.close(); return [(await q.getJob(j.id)).failedReason]; });
await step("delayed by a worker", async () => { const { DelayedError } = await import(process.env.BUNQUEUE_CLIENT); const j = await add("DE", "de", {}, { backoff: 60000 }); const w = worker(async (job) => { await job.moveToDelayed(Date.now() + 60000); throw new DelayedError(); }); await until(async () => (await j.getState()) === "delayed"); await w.close(); return (await q.getJob(j.id)).attemptsMade; });
// The client discards a job that a fetch returns while its worker is paused, so it is paused when no fetch is in flight.
await step("pause a worker", async () => { let seen = 0; const w = worker(async () => { seen += 1; }); await new Promise((next) => w.once("drained", () => { w.pause(); next(); })); await w.waitUntilReady(); await add("PW", "pw", {}); const paused = [w.isPaused(), seen]; w.resume(); await until(() => seen === 1); await w.close(); return [...paused, w.isPaused(), w.isRunning()]; });
await step("retries", async () => { let tries = 0; const j = await add("RT", "rt", {}, { attempts: 3, backoff: 10 }); const w = worker(async () => { tries += 1; if (tries < 3) throw new Error("again"); return tries; }); const r = await j.waitUntilFinished(events, 30000); await w.close(); return [r, (await q.getJob(j.id)).attemptsMade]; });
await step("drain before flows", () => q.drainAsync());

// -- flows
const flow = new FlowProducer({ connection });
const work = () => worker(async (j) => { if (j.name === "bad") throw new Error("child"); return j.name === "sum" ? Object.values(await j.getChildrenValues()).sort() : j.name; }, { concurrency: 2 });
await step("flow", async () => { const tree = await flow.add({ name: "sum", queueName: name, data: {}, children: [{ name: "k1", queueName: name, data: {} }, { name: "k2", queueName: name, data: {} }] }); ids.set(tree.job.id, "ROOT"); const r = [await tree.job.getState(), await q.getJobDependenciesCount(tree.job.id)]; const w = work(); r.push(await tree.job.waitUntilFinished(events, 30000)); await w.close(); r.push(Object.keys(await q.getChildrenValues(tree.job.id)).length, await q.getJobDependencies(tree.job.id).then((d) => Object.keys(d).sort())); return r; });
await step("getFlow", async () => { const tree = await flow.add({ name: "p", queueName: name, data: {}, children: [{ name: "k", queueName: name, data: {}, opts: { delay: 60000 } }] }); const got = await flow.getFlow({ id: tree.job.id, queueName: name }); return [got?.job?.name, got?.children?.map((c) => c.job.name)]; });
await step("addChain", async () => { const r = await flow.addChain([{ name: "c1", queueName: name, data: { c: 1 } }, { name: "c2", queueName: name, data: { c: 2 } }]); const last = r.jobIds.at(-1); const w = work(); await until(async () => (await q.getJobState(last)) === "completed"); await w.close(); return [r.jobIds.length, await flow.getParentResult(r.jobIds[0])]; });
await step("addBulkThen", async () => { const r = await flow.addBulkThen([{ name: "b1", queueName: name, data: {} }, { name: "b2", queueName: name, data: {} }], { name: "then", queueName: name, data: {} }); const w = work(); await until(async () => (await q.getJobState(r.finalId)) === "completed"); await w.close(); const got = await flow.getParentResults(r.parallelIds); return [r.parallelIds.length, got instanceof Map ? [...got.values()].sort() : got]; });
await step("addTree", async () => { const r = await flow.addTree({ name: "t", queueName: name, data: {}, children: [{ name: "t1", queueName: name, data: {} }, { name: "t2", queueName: name, data: {} }] }); return r.jobIds.length; });
await step("flow addBulk", async () => (await flow.addBulk([{ name: "f1", queueName: name, data: {} }, { name: "f2", queueName: name, data: {}, children: [{ name: "f3", queueName: name, data: {} }] }])).map((x) => x.job.name));
await step("failing children", async () => { await q.drainAsync(); const out = []; for (const [k, o] of Object.entries({ fail: { failParentOnFailure: true }, ignore: { ignoreDependencyOnFailure: true }, remove: { removeDependencyOnFailure: true } })) { const t = await flow.add({ name: "par", queueName: name, data: {}, children: [{ name: "bad", queueName: name, data: {}, opts: { attempts: 1, ...o } }] }); const w = work(); await until(async () => ["completed", "failed"].includes(await q.getJobState(t.job.id))); await w.close(); const p = await q.getJob(t.job.id); out.push([k, await p.getState(), Object.values(await p.getIgnoredChildrenFailures()), Object.values(await p.getFailedChildrenValues())]); } return out; });
await step("removeChildDependency", async () => { const t = await flow.add({ name: "rp", queueName: name, data: {}, children: [{ name: "rk", queueName: name, data: {}, opts: { delay: 60000 } }] }); const child = t.children[0].job; const r = await child.removeChildDependency(); return [r, await t.job.getState()]; });
await step("removeUnprocessedChildren", async () => { const t = await flow.add({ name: "up", queueName: name, data: {}, children: [{ name: "uk", queueName: name, data: {}, opts: { delay: 60000 } }] }); await t.job.removeUnprocessedChildren(); return t.children[0].job.getState(); });
await step("QueueGroup", async () => { const g = new QueueGroup(name + "g", { connection }); const p = g.getQueue("one", { connection }); await p.add("x", {}); return [await g.listQueuesAsync?.() ?? null, await g.pauseAllAsync?.(), await g.resumeAllAsync?.()].length; });
await step("forward", async () => typeof q.forward);
await step("obliterate at the end", () => q.obliterateAsync({ force: true }));
await manual.close().catch(() => {});
process.exit(0);
