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

local STAGED_MS = 600000
local DONE_MS = 600000 -- another process may have read a step before the record was deleted
local PARTS = 2 -- of a step

local function mark_of(q, token) return G.num(redis.call('GET', q.P .. 'flow-mark:' .. token) or '') end

-- The server may execute a call after its client has given up: the mark rejects it if the flow was withdrawn.
G.export('flow_stage', {}, function(q, r)
  local key, mark, staged = q.P .. 'flow:' .. r.token, mark_of(q, r.token), r.at * PARTS
  if mark >= G.flows.WITHDRAWN_MARK then return 0 end
  local count = redis.call('LLEN', key)
  if mark > 0 and count == 0 then return 1 end -- repeated, and completed by a worker
  if count < staged then return 0 end
  if #r.steps > 0 and count == staged then redis.call('RPUSH', key, unpack(r.steps)) end
  if r.commit == 1 then
    redis.call('HSET', q.P .. 'flows', r.token, G.int(G.now(q)))
    redis.call('PERSIST', key)
  else
    redis.call('PEXPIRE', key, STAGED_MS)
    G.record_temporary(q, 'flow:' .. r.token, G.now(q), STAGED_MS)
  end
  return 1
end)

G.export('flow_withdraw', { 'allow-oom' }, function(q, r)
  local mark = mark_of(q, r.token)
  if mark > 0 and mark < G.flows.WITHDRAWN_MARK then return 0 end
  redis.call('SET', q.P .. 'flow-mark:' .. r.token, G.int(G.flows.WITHDRAWN_MARK), 'PX', DONE_MS)
  G.record_temporary(q, 'flow-mark:' .. r.token, G.now(q), DONE_MS)
  redis.call('HDEL', q.P .. 'flows', r.token)
  redis.call('UNLINK', q.P .. 'flow:' .. r.token)
  return 1
end)

G.export('flow_done', { 'allow-oom' }, function(q, r)
  redis.call('HDEL', q.P .. 'flows', r.token)
  redis.call('UNLINK', q.P .. 'flow:' .. r.token)
  redis.call('PEXPIRE', q.P .. 'flow-mark:' .. r.token, DONE_MS)
  return 1
end)

G.export('flows_due', { 'allow-oom' }, function(q, r)
  local now = G.now(q)
  local due, tokens = redis.call('HRANDFIELD', q.P .. 'flows', r.count, 'WITHVALUES'), {}
  for i = 1, #due, 2 do
    if now - (G.past_time(due[i + 1], now) or 0) >= r.age then
      tokens[#tokens + 1] = due[i]
      redis.call('HSET', q.P .. 'flows', due[i], G.int(now))
    end
  end
  return cmsgpack.pack(tokens)
end)
