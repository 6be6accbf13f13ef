-- due_times: return when jobs are due.
-- KEYS 1 meta   ARGV 1 packed {ids}   -> packed list of epoch ms, 0 = the job is not delayed
-- A job with a priority that is due is delayed until a worker fetches it. Bound: IDS_MAX ids.

local R = G.rescheduling
local IDS_MAX = 1000

local function due_time(q, id)
  local h = G.pick(q.J .. id, 'state', 'rank', 'fairKey', 'priority')
  if h.state ~= 'delayed' then return 0 end
  if G.ranks.of(h.rank) then
    local at = redis.call('ZSCORE', q.delayed_own, id)
    if at then return G.count_of(at) end
  end
  local _, due = R.scheduled_at(q, id, h)
  return due or 0
end

G.export('due_times', { 'no-writes' }, function(q, r)
  if #r.ids > IDS_MAX then error('too many ids: ' .. #r.ids) end
  local times = {}
  for i, id in ipairs(r.ids) do
    local ok, due = G.attempt(due_time, q, id)
    times[i] = ok and due or 0
  end
  return cmsgpack.pack(times)
end)
