-- Stage a flow that takes several calls to add: its steps are stored first and then executed, since its producer may
-- die at any time. Before the commit nothing is visible and the record expires. After it the flow is completed by its
-- producer or by any worker of the queue.
-- flow_stage: KEYS 1 meta   ARGV 1 packed {token, commit 0|1, at, steps}   -> 1; 0 = the record has expired, or the flow
-- was withdrawn: nothing was staged
--   at: number of the steps that were staged before; repeating a call has no effect
--   steps: flat {meta key of the step's queue, packed argument of flow_add, ...}
-- flow_withdraw: KEYS 1 meta   ARGV 1 token   -> 1: no step of the flow was executed in this queue, and none will be;
-- 0: one was. Deletes the record. Called for the queue of the first step, and then for that of the root
-- flow_done:  KEYS 1 meta   ARGV 1 token   -> 1; deletes the record, and the mark after DONE_MS. Also called for the
-- other queues of the flow, which have only a mark
-- flows_due:  KEYS 1 meta   ARGV 1 packed {age ms, count}   -> packed tokens of flows committed (or returned by this
-- function) at least that long ago, `count` at most
-- flow_reserve: reserve ids for the jobs of a flow that takes several calls to add.
-- KEYS 1 meta   ARGV 1 packed {count, custom ids, orderings, token, layout}
-- -> packed {ids, existing custom id or false, too costly}
--   too costly: the number of the ordering (as in `add`) whose bucket holds less than it costs, or 0
--   layout: number of the layout of the queue's partitions, 0 = it has none, false = not checked. Of a partition, the mark
--   of the flow is written: it is kept while the flow is added, even if it gets no other jobs
-- errors: ERR layout (the partition has another layout)
-- Bound: the ids and orderings given.

local STAGED_MS = 600000
local DONE_MS = 600000 -- another process may have read a step before the record was deleted
local PARTS = 2 -- of a step

local function mark_of(q, token) return G.num(redis.call('GET', q.P .. 'flow-mark:' .. token)) end

local function delete(q, token)
  redis.call('HDEL', q.flows, token)
  redis.call('UNLINK', q.P .. 'flow:' .. token)
end

-- The server may execute a call after its client has given up: the mark rejects it if the flow was withdrawn.
G.export('flow_stage', {}, function(q, r)
  local key, mark, staged = q.P .. 'flow:' .. r.token, mark_of(q, r.token), r.at * PARTS
  if mark >= G.flows.WITHDRAWN_MARK then return 0 end
  local count = redis.call('LLEN', key)
  if mark > 0 and count == 0 then return 1 end -- repeated, and completed by a worker
  if count < staged then return 0 end
  if #r.steps > 0 and count == staged then redis.call('RPUSH', key, unpack(r.steps)) end
  if r.commit == 1 then
    redis.call('HSET', q.flows, r.token, G.int(G.now(q)))
    redis.call('PERSIST', key)
  else
    G.expire_temporary(q, 'flow:' .. r.token, G.now(q), STAGED_MS)
  end
  return 1
end)

G.export('flow_withdraw', { 'allow-oom' }, function(q, r)
  local mark = mark_of(q, r.token)
  if mark > 0 and mark < G.flows.WITHDRAWN_MARK then return 0 end
  redis.call('SET', q.P .. 'flow-mark:' .. r.token, G.int(G.flows.WITHDRAWN_MARK), 'PX', DONE_MS)
  G.record_temporary(q, 'flow-mark:' .. r.token, G.now(q), DONE_MS)
  delete(q, r.token)
  return 1
end)

G.export('flow_done', { 'allow-oom' }, function(q, r)
  delete(q, r.token)
  redis.call('PEXPIRE', q.P .. 'flow-mark:' .. r.token, DONE_MS)
  return 1
end)

G.export('flows_due', { 'allow-oom' }, function(q, r)
  local now = G.now(q)
  local due, tokens = redis.call('HRANDFIELD', q.flows, r.count, 'WITHVALUES'), {}
  for i = 1, #due, 2 do
    if now - (G.past_time(due[i + 1], now) or 0) >= r.age then
      tokens[#tokens + 1] = due[i]
      redis.call('HSET', q.flows, due[i], G.int(now))
    end
  end
  return tokens
end)

local A = G.adding

local RESERVED_MS = 86400000 -- a flow is committed within a day

G.export('flow_reserve', {}, function(q, r)
  local outdated = G.layout.check(q, r.layout)
  if outdated then return outdated end
  local rows, now, taken = {}, G.now(q), false
  for _, id in ipairs(r.ids) do
    if G.exists(q, id) then taken = id end
  end
  for i, ordering in ipairs(r.orderings) do
    if A.too_costly(q, ordering) then
      return { ids = {}, taken = taken, costly = i }
    end
  end
  if taken then return { ids = {}, taken = taken, costly = 0 } end
  for _, id in ipairs(r.ids) do G.advance_counter(q, id) end
  if r.layout and r.layout > 0 and redis.call('SET', q.P .. 'flow-mark:' .. r.token, '0', 'NX', 'PX', RESERVED_MS) then
    G.record_temporary(q, 'flow-mark:' .. r.token, now, RESERVED_MS)
  end
  for i = 1, r.count do rows[i] = {} end
  local ids = A.issue_ids(q, rows) or {}
  for i = #ids + 1, r.count do ids[i] = A.next_free_id(q) end
  return { ids = ids, taken = false, costly = 0 }
end)
