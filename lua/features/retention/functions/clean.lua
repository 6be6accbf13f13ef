-- clean: delete completed or failed jobs that ended long enough ago, oldest first, one bounded batch per call.
-- KEYS 1 meta   ARGV 1 packed {state, grace ms, cutoff, batch, want, total}   -> packed {cutoff, ids, more}
-- cutoff: -1 at first, then the value of the previous reply (epoch ms)   want: how many more are requested
-- total: deleted by the previous calls. The last call writes one event for all of them, as peers do (jobId = count).
-- A member of the index whose job is in another state is removed from the index; the job stays. Bound: `batch` jobs per
-- call.
-- clean_jobs: delete those of the given jobs that are still in one of the given states and were added long enough ago.
-- KEYS 1 meta   ARGV 1 packed {ids, states, before, total, is_last}   -> packed ids of the deleted jobs
-- states: separated by spaces   before: deletes jobs added at or before this time (epoch ms)
-- total: deleted by the previous calls. The last call writes one event for all of them, as `clean` does (jobId = count).
-- Bound: the jobs given (the client sends 100 at most), and the bound of `remove` for each.
-- delete_side_keys: delete the keys that jobs own besides their record, of jobs that no longer exist.
-- KEYS 1 meta   ARGV 1 packed ids   -> packed ids of the jobs that still exist
-- For jobs that were deleted as jobs without such keys just before a peer came. Bound: the ids.

G.export('clean', { 'allow-oom' }, G.for_operators(function(q, r)
  local state, cutoff, batch, want = r.state, r.cutoff, r.batch, r.want
  if not G.TERMINAL[state] then return redis.error_reply('ERR no index of the state ' .. tostring(state)) end
  local zset = q[state]
  if cutoff < 0 then cutoff = math.max(0, G.now(q) - r.grace) end
  local limit = math.min(batch, want)
  local found = redis.call('ZRANGEBYSCORE', zset, '-inf', G.int(cutoff), 'LIMIT', 0, limit)
  local ids, removed = G.delete_ended(q, zset, state, found, G.now(q))
  local more = removed == limit and #ids < want
  if not more and r.total + #ids > 0 then G.emit(q.events, 'cleaned', G.int(r.total + #ids)) end
  return { cutoff = cutoff, ids = ids, more = more }
end))

local function remove(q, r, id)
  local h = G.pick(q.J .. id, 'state', 'timestamp')
  if not h.state or not G.is_among(r.states, h.state) or G.num(h.timestamp) > r.before then return false end
  G.remove_job(q, id, 'removed', true)
  return true
end

G.export('clean_jobs', { 'allow-oom' }, G.for_operators(function(q, r)
  local removed = {}
  for _, id in ipairs(r.ids) do
    local ok, done = G.attempt(remove, q, r, id)
    if ok and done then removed[#removed + 1] = id end
  end
  local total = r.total + #removed
  if r.is_last and total > 0 then G.emit(q.events, 'cleaned', G.int(total)) end
  return removed
end))

G.export('delete_side_keys', { 'allow-oom' }, function(q, r)
  local left = {}
  for _, id in ipairs(r.ids) do
    if not G.exists(q, id) then
      redis.call('UNLINK', G.satellites(q, id))
    else
      left[#left + 1] = id
    end
  end
  return left
end)
