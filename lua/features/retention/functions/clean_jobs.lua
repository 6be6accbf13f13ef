-- clean_jobs: delete those of the given jobs that are still in one of the given states and were added long enough ago.
-- KEYS 1 meta   ARGV 1 packed {ids, states, before, total, is_last}   -> packed ids of the deleted jobs
-- states: separated by spaces   before: deletes jobs added at or before this time (epoch ms)
-- total: deleted by the previous calls. The last call writes one event for all of them, as `clean` does (jobId = count).
-- Bound: the jobs given (the client sends 100 at most), and the bound of `remove` for each.

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
  return cmsgpack.pack(removed)
end))
