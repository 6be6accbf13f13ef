-- Creation of the partitions of a queue, in three steps: begin_partitions, then store_layout in all partitions but the
-- first, then create_partitions in partition 0. Until that last call, no client routes a job to another partition.
--
-- begin_partitions: issue the number of a layout, for a queue that has had no job.
--   KEYS 1 meta (of partition 0, the queue itself)   ARGV 1 packed {above}   -> packed {layout, number, settings, deleted}
--   layout: the layout of the queue, as text; '' = none   number: larger than `above` and any number that was issued before;
--   0 = the queue has a layout; or it has, or has had, jobs, or has limits, which would have to be divided; nothing was
--   changed   settings: fields of P:meta and their values, flat, for the other partitions
--   deleted: the largest number of a layout that was deleted here; 0 = none, or long ago
--   Bound: constant.
-- store_layout: give a partition, but the first, the number and the text of a layout.
--   KEYS 1 meta   ARGV 1 packed {number, layout, settings, deleted}   -> 1; 0 = it has jobs of a deleted queue, nothing was done
--   settings: as of begin_partitions; they replace those that a deleted queue has left. false = the queue has these partitions,
--   and this one has lost the number in a failover: its settings and jobs stay
--   deleted: of begin_partitions. Jobs of an earlier layout with these partitions stay if its number is larger: obliterate
--   removes the number first, so that layout was lost in partition 0 alone, by a failover or a primary that started empty
--   errors: ERR layout (the partition has a later one, or a queue was deleted with this or a later one)
--   Bound: constant.
-- create_partitions: make the queue a partitioned one.
--   KEYS 1 meta (of partition 0)   ARGV 1 packed {number, layout, settings}
--   -> the layout of the queue; '' = the queue has jobs or limits by now; 'again' = settings have changed, or another number
--   was issued since. Nothing was changed unless the reply is `layout`
--   Bound: constant.
-- restore_layout: store a layout that partition 0 has lost in a failover.
--   KEYS 1 meta (of partition 0)   ARGV 1 packed {number, layout, before}   -> 1; 0 = it has this or a later one, or a queue
--   was deleted with this or a later one; nothing was changed
--   before: number of the layout that it has, 0 = any
--   Bound: constant.

local M = G.layout
local ISSUED = 'layoutIssued'
local COPIED = {
  'features', 'paused', 'deadLetterQueueName', 'deadLetterOn', 'stalledInterval', 'maxStalledCount', 'stalledGrace',
  'attemptHistory', 'failurePolicy', 'metricsByName', 'timeline', 'tellsStarts', 'maxLenEvents', 'resultsKept',
}
local LEFT = {
  'globalConcurrency', 'rateLimitMax', 'rateLimitDuration', 'temporaryLimits', 'resultsId', 'resultsLeft', 'resultsSettled',
}

local function has_jobs(q)
  if redis.call('EXISTS', q.scheduled, q.completed, q.failed, q.priority, q.lifo, q.list_active, q.suspended,
    q.waiting_children, q.ratelimited, q.ranked_above, q.ranked_below, q.fair_keys, q.schedulers, q.batches) > 0 then
    return true
  end
  local entries = G.pcall('XLEN', q.stream)
  return type(entries) ~= 'number' or entries > 0
end

-- Return whether the queue has had a job, which a later one could be compared with. dedup ids outlive their jobs.
local function has_had_jobs(q)
  return has_jobs(q) or redis.call('EXISTS', q.id, q.ordering) > 0
    or redis.call('ZCOUNT', q.dedup_expiry, '(' .. G.int(G.now(q)), '+inf') > 0
end

local function has_limits(q)
  local temporary = G.limit_ttl.read(redis.call('HGET', q.meta, 'temporaryLimits'))
  if temporary then G.limit_ttl.expire(q, temporary, G.now(q)) end
  local concurrency, max = G.limit_ttl.effective(q, G.now(q))
  return concurrency > 0 or max > 0 or redis.call('HEXISTS', q.meta, 'temporaryLimits') == 1
    or redis.call('EXISTS', q.fair_limits) == 1
end

-- Return the settings with their values, as a flat list.
local function settings_of(q) return G.stored(q.meta, COPIED) end

-- Replace what a deleted queue has left. number: of the layout, which becomes the id of the sequence of results, if it is on.
local function write_settings(q, settings, number)
  for i = 1, #COPIED do
    if COPIED[i] ~= 'features' then redis.call('HDEL', q.meta, COPIED[i]) end
  end
  redis.call('HDEL', q.meta, unpack(LEFT))
  redis.call('UNLINK', q.fair_limits, q.results)
  for i = 1, #settings, 2 do
    if settings[i] ~= 'features' then
      redis.call('HSET', q.meta, settings[i], settings[i + 1])
    else
      for feature in string.gmatch(settings[i + 1], '[^,]+') do G.use_feature(q, feature) end
    end
  end
  if redis.call('HEXISTS', q.meta, 'resultsKept') == 1 then redis.call('HSET', q.meta, 'resultsId', G.int(number)) end
end

local function names_of(layout) return G.match(layout, '"names":.-%]') end

G.export('begin_partitions', {}, function(q, r)
  local layout = redis.call('HGET', q.meta, 'partitions')
  if layout or has_had_jobs(q) or has_limits(q) then
    return { layout = layout or '', number = 0, settings = {}, deleted = 0 }
  end
  local last = math.max(r.above, M.deleted(q), G.count_of(redis.call('HGET', q.meta, ISSUED)))
  local number = math.max(G.now(q), last + 1)
  redis.call('HSET', q.meta, ISSUED, G.int(number))
  return { layout = '', number = number, settings = settings_of(q), deleted = M.deleted(q) }
end)

G.export('store_layout', {}, function(q, r)
  local stored, deleted = M.number(q), M.deleted(q)
  if stored > r.number or deleted >= r.number then return M.refusal(q, math.max(stored, deleted), r.number) end
  if stored == r.number then return 1 end
  if r.settings then
    if not has_jobs(q) then
      write_settings(q, r.settings, r.number)
    elseif stored <= r.deleted or names_of(redis.call('HGET', q.meta, 'knownLayout')) ~= names_of(r.layout) then
      return 0
    end
  end
  M.store(q, r.number)
  redis.call('HSET', q.meta, 'knownLayout', r.layout)
  return 1
end)

G.export('create_partitions', {}, function(q, r)
  local layout = redis.call('HGET', q.meta, 'partitions')
  if layout then return layout end
  if has_had_jobs(q) or has_limits(q) then return '' end
  local issued = G.count_of(redis.call('HGET', q.meta, ISSUED))
  if issued ~= r.number or table.concat(settings_of(q), '\0') ~= table.concat(r.settings, '\0') then return 'again' end
  M.store(q, r.number)
  redis.call('HSET', q.meta, 'partitions', r.layout)
  redis.call('HDEL', q.meta, ISSUED)
  return r.layout
end)

G.export('restore_layout', {}, function(q, r)
  local stored = M.number(q)
  if math.max(stored, M.deleted(q)) >= r.number or r.before > 0 and stored ~= r.before then return 0 end
  M.store(q, r.number)
  redis.call('HSET', q.meta, 'partitions', r.layout)
  return 1
end)
