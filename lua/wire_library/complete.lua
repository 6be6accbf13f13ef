-- glidemq_complete: complete a job.
-- KEYS 1 stream, 2 completed, 3 events, 4 job, 5 metrics:completed; optional 6 parent deps, 7 parent job, 8 parent
-- stream, 9 parent events
--   ARGV 1 id, 2 entry id ('' = from a list), 3 returnvalue, 4 now, 5 group, 6 retention mode, 7 count, 8 age s, 9 deps
--   member, 10 parent id, 11 broadcast 0/1   -> 1
-- A call that is not for the job's current attempt (a repeated or late one, or one for a deleted job) acknowledges its
-- entry and changes nothing else. Bound: constant, plus the jobs deleted by retention (at most 1,000).
local W = G.W
local F = G.flows

local function parents(q, keys, c)
  if c.member and c.parent_id and #keys >= 9 then
    local generation = redis.call('HGET', q.J .. c.id, F.link(string.sub(keys[8], 1, -#'stream' - 1) .. c.parent_id))
    W.notify_parent(keys[8], c.parent_id, c.member, c.value, c.now, generation)
  end
  W.notify_dag(q, c.id, c.value, c.now)
end

-- A rejected list job was counted when it was popped; a deleted or finished one was already removed from the count.
W.uncount_rejected = function(q, h, c)
  if c.entry == '' and h.revoked == '1' and h.state == 'failed' then G.untrack_list_job(q, c.id) end
end

-- c: id, entry, value, now, group, retention, member, parent_id, broadcast, started (processedOn that the worker
-- received, or nil), quiet, no_metrics. Also the first half of completeAndFetchNext.
W.complete = function(q, keys, c)
  local acked = W.ack(q, c.group, c.entry, c.broadcast)
  local key, h = q.J .. c.id, G.job_of(q, c.id)
  local stale = c.started and h.processedOn and tonumber(h.processedOn) ~= c.started
  if not h.state or (not c.broadcast and (stale or not W.is_current(h, c.entry, acked))) then
    return W.uncount_rejected(q, h, c)
  end
  local now_text = G.text(c.now)
  redis.call('ZADD', q.completed, now_text, c.id)
  redis.call('HSET', key, 'state', 'completed', 'returnvalue', c.value, 'finishedOn', now_text)
  W.leave_group(q, c.id, h, c.now)
  if not c.quiet then G.emit(q.events, 'completed', c.id, 'returnvalue', c.value) end
  if not c.no_metrics then G.metric_of_job(q.metrics_completed, c.now, h.processedOn) end
  if c.entry == '' then G.untrack_list_job(q, c.id) end
  parents(q, keys, c)
  if not c.broadcast then W.retain(q, q.completed, c.id, c.retention, c.now) end
end

-- Add the arguments of a completion to `c`. at: position of those after the worker's.
W.completion = function(args, at, c)
  c.id, c.entry, c.value, c.now, c.group = args[1], args[2], args[3], G.num(args[4]), args[5]
  c.retention = W.retention(args[at], args[at + 1], args[at + 2])
  c.member, c.parent_id = G.given(args[at + 3]), G.given(args[at + 4])
  return c
end

G.export('complete', { 'allow-oom' }, function(keys, args)
  W.complete(W.job_queue(keys[4], args[1]), keys, W.completion(args, 6, { broadcast = args[11] == '1' }))
  return 1
end)
