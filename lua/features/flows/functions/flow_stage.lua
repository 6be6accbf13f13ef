-- Stage a flow that takes several calls to add: its steps are stored first and then executed, since its producer may
-- die at any time. Before the commit nothing is visible and the record expires. After it the flow is completed by its
-- producer or by any worker of the queue.
-- flow_stage: KEYS 1 meta   ARGV 1 packed {token, commit 0|1, steps}   -> 1
--   steps: flat {meta key of the step's queue, packed argument of flow_add, ...}
-- flow_done:  KEYS 1 meta   ARGV 1 token   -> 1; deletes the record, and the mark after DONE_MS. Also called for the
-- other queues of the flow, which have only a mark
-- flows_due:  KEYS 1 meta   ARGV 1 packed {age ms, count}   -> packed tokens of flows committed (or returned by this
-- function) at least that long ago, `count` at most

local STAGED_MS = 600000
local DONE_MS = 600000 -- another process may have read a step before the record was deleted

G.export('flow_stage', {}, function(q, r)
  local key = q.P .. 'flow:' .. r.token
  if #r.steps > 0 then redis.call('RPUSH', key, unpack(r.steps)) end
  if r.commit == 1 then
    redis.call('HSET', q.P .. 'flows', r.token, G.int(G.now(q)))
    redis.call('PERSIST', key)
  else
    redis.call('PEXPIRE', key, STAGED_MS)
    G.record_temporary(q, 'flow:' .. r.token, G.now(q), STAGED_MS)
  end
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
