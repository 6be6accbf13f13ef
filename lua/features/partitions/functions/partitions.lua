-- create_partitions: make an empty queue a partitioned one.
--   KEYS 1 meta (of the queue itself, which is its partition 0)   ARGV 1 packed {layout}   -> the layout of the queue
-- layout: text for clients (_features/partitions/stored.py), which is stored as it is. A queue that already has a layout
-- keeps it. The reply is '' if the queue has jobs, which would not be found by their routing keys; nothing was changed.
-- Bound: constant.

local FEATURE = 'partitions:0.2.0'

local function has_jobs(q)
  if redis.call('EXISTS', q.scheduled, q.completed, q.failed, q.priority, q.lifo, q.list_active, q.suspended,
    q.waiting_children, q.ratelimited, q.ranked_above, q.ranked_below, q.fair_keys, q.schedulers) > 0 then
    return true
  end
  local entries = G.pcall('XLEN', q.stream)
  return type(entries) ~= 'number' or entries > 0
end

G.export('create_partitions', {}, function(q, r)
  local layout = redis.call('HGET', q.meta, 'partitions')
  if layout then return layout end
  if has_jobs(q) then return '' end
  G.use_feature(q, FEATURE)
  redis.call('HSET', q.meta, 'partitions', r.layout)
  return r.layout
end)
