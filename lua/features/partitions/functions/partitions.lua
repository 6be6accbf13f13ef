-- create_partitions: make an empty queue a partitioned one.
--   KEYS 1 meta (of partition 0, the queue itself)   ARGV 1 packed {layout, epoch, settings, has_former}
--   -> the layout of the queue
-- layout: text for clients (_features/partitions/stored.py), which is stored as it is. epoch: its number. settings: number of
-- changes of settings before they were copied. A queue that already has a layout keeps it. The reply is '' if the queue has
-- jobs, which would not be found by their routing keys, or limits, which would have to be divided; nothing was changed.
-- Without a layout, and if settings have changed meanwhile, the reply is 'empty': it could be created.
-- has_former: true = clients with this layout look for jobs of a key in partition 0 first, as after a change. Without it, the
-- reply is 'unique' if an add may still be deduplicated; nothing was changed.
-- errors: ERR layout (a queue of this name was deleted with a later layout, or its partitions are not all deleted yet)
-- Bound: constant.

local M = G.moving

local function settings_number(q)
  return G.count_of(redis.call('HGET', q.meta, 'settingsNumber'))
end

local function has_jobs(q)
  if redis.call('EXISTS', q.scheduled, q.completed, q.failed, q.priority, q.lifo, q.list_active, q.suspended,
    q.waiting_children, q.ratelimited, q.ranked_above, q.ranked_below, q.fair_keys, q.schedulers) > 0 then
    return true
  end
  local entries = G.pcall('XLEN', q.stream)
  return type(entries) ~= 'number' or entries > 0
end

local function has_limits(q)
  local temporary = G.limit_ttl.read(redis.call('HGET', q.meta, 'temporaryLimits'))
  if temporary then G.limit_ttl.expire(q, temporary, G.now(q)) end
  local concurrency, max = G.limit_ttl.effective(q, G.now(q))
  return concurrency > 0 or max > 0 or redis.call('HEXISTS', q.meta, 'temporaryLimits') == 1
    or redis.call('EXISTS', q.fair_limits) == 1
end

G.export('create_partitions', {}, function(q, r)
  local layout = redis.call('HGET', q.meta, 'partitions')
  if layout then return layout end
  if has_jobs(q) or has_limits(q) then return '' end
  if r.layout == '' or settings_number(q) ~= r.settings then return 'empty' end
  if not r.has_former and redis.call('ZCOUNT', q.dedup_expiry, '(' .. G.int(G.now(q)), '+inf') > 0 then return 'unique' end
  local refused = M.refused_new(q, r.epoch)
  if refused then return refused end
  M.advance(q, r.epoch)
  redis.call('HSET', q.meta, 'partitions', r.layout)
  return r.layout
end)

-- set_layout: replace the layout of a queue, if it is still the one that the caller has read.
--   KEYS 1 meta (of partition 0)   ARGV 1 packed {before, layout, epoch, settings}   -> the layout of the queue
-- before: the layout that was read, '' = none. epoch: number of the new layout, larger than any before. settings: number of
-- changes of settings before they were copied; -1 = any. If the reply is not `layout`, another client has changed the layout
-- or, if it is `before`, settings meanwhile; nothing was changed.
-- errors: ERR layout, as for create_partitions
-- Bound: constant.
G.export('set_layout', {}, function(q, r)
  local found = redis.call('HGET', q.meta, 'partitions') or ''
  if found ~= r.before then return found end
  if r.settings >= 0 and settings_number(q) ~= r.settings then return found end
  local refused = M.refused_new(q, r.epoch)
  if refused then return refused end
  if r.before == '' then G.shares.adopt(q, G.now(q)) end
  M.advance(q, r.epoch)
  redis.call('HSET', q.meta, 'partitions', r.layout)
  return r.layout
end)

-- advance_layout: let a further partition take over a layout, and so refuse clients that know an earlier one only.
--   KEYS 1 meta   ARGV 1 packed {epoch, layout}   -> 1
-- epoch: number of the layout.   layout: its text, which is stored, so that it can be restored if partition 0 loses it.
-- errors: ERR layout (the partition has a later one, or a queue was deleted with this or a later one)
-- Bound: constant.
G.export('advance_layout', {}, function(q, r)
  local stored, deleted = M.number(q), M.deleted(q)
  if deleted >= r.epoch then return M.refusal(q, deleted, r.epoch) end
  if stored > r.epoch then return M.refusal(q, stored, r.epoch) end
  if stored < r.epoch then
    M.advance(q, r.epoch)
    redis.call('HSET', q.meta, 'knownLayout', r.layout)
  end
  return 1
end)

-- keys_in_use: return which keys still have jobs in their former partition. The others are moved: this partition takes
-- no more of their jobs until the next layout.
--   KEYS 1 meta   ARGV 1 packed {epoch, rows, peek}   -> packed list: 0 = moved, 1 = in use, 2 = a job has the custom id
-- row: {key, custom id or false, true if the key is an ordering key, dedup as in `add` or false}; at least one of the
-- three is given, with the text of the key.   peek: true = no key is moved: the partition is the present one of the keys
-- errors: ERR layout (the partition has another one)
-- Bound: the rows given.
G.export('keys_in_use', {}, function(q, r)
  local refused = M.check(q, r.epoch)
  if refused then return refused end
  local now, found = G.now(q), {}
  for i = 1, #r.rows do found[i] = M.look_up(q, r.rows[i], now, r.peek) end
  return cmsgpack.pack(found)
end)

local COPIED = {
  'features', 'paused', 'deadLetterQueueName', 'deadLetterOn', 'stalledInterval', 'maxStalledCount', 'stalledGrace',
  'attemptHistory', 'failurePolicy', 'metricsByName', 'timeline', 'tellsStarts', 'maxLenEvents',
}
local DIVIDED = { 'globalConcurrency', 'rateLimitMax', 'rateLimitDuration', 'temporaryLimits' }
local OF_GROUP = { 'limitsKept', 'maxConcurrency', 'rateMax', 'rateDuration', 'tbCapacity', 'tbRefillRate' }
local SCAN, GROUP = G.rows.scan, G.rows.group_settings
local PAGE = 200

-- Return the fields with values that exist, as a flat list.
local function existing(key, names)
  local found, values = {}, redis.call('HMGET', key, unpack(names))
  for i = 1, #names do
    if values[i] then found[#found + 1], found[#found + 2] = names[i], values[i] end
  end
  return found
end

-- names: group and last sequence, flat. Return the rows of the groups whose limits were set by limit_group.
local function kept_groups(q, names)
  local groups = {}
  for i = 1, #names, 2 do
    local key = q.P .. 'group:' .. names[i]
    if redis.call('HEXISTS', key, 'limitsKept') == 1 then
      groups[#groups + 1] = G.new.group_settings({ name = names[i], settings = existing(key, OF_GROUP) })
    end
  end
  return groups
end

-- read_settings: return the settings of a queue, and the limits of its keys, for a further partition.
--   KEYS 1 meta   ARGV 1 packed {cursor}   -> packed {settings, limits, groups, cursor ('' = the end)}
-- cursor: '' = begin; the first page has the settings: fields of P:meta and values, flat
-- limits: members of P:fair-limits, flat   groups: rows {ordering key, fields of its group, flat} of the groups whose limits
-- were set by limit_group
-- Bound: a page of about 200 keys.
G.export('read_settings', { 'allow-oom' }, function(q, r)
  local phase, at = string.match(r.cursor, '^([lg])(%d+)$')
  phase, at = phase or 'l', at or '0'
  local of_limits = phase == 'l'
  local page = redis.call('HSCAN', of_limits and q.fair_limits or q.ordering, at, 'COUNT', PAGE)
  local found, following = page[SCAN.found], page[SCAN.cursor]
  local cursor = of_limits and 'g0' or ''
  if following ~= '0' then cursor = phase .. following end
  return G.replies.read_settings({
    settings = r.cursor == '' and existing(q.meta, COPIED) or {}, limits = of_limits and found or {},
    groups = of_limits and {} or kept_groups(q, found), cursor = cursor,
  })
end)

-- Remove the settings, and all limits but those of ordering keys. The features stay: what has them may still exist.
local function remove_settings(q)
  for i = 1, #COPIED do
    if COPIED[i] ~= 'features' then redis.call('HDEL', q.meta, COPIED[i]) end
  end
  redis.call('HDEL', q.meta, unpack(DIVIDED))
  redis.call('UNLINK', q.fair_limits)
end

-- copy_settings: write what read_settings has returned for another partition of the queue.
--   KEYS 1 meta   ARGV 1 packed {settings, limits, groups, used_from, epoch}   -> 1
-- limits: those of a key without text are removed. groups: the limits of a row without settings are removed. used_from: number
-- of the first layout that uses the partition again; its former settings and limits, but for those of ordering keys, are
-- removed. 0 = it is in use. epoch: with used_from: at most the number of the coming layout, of any client: a deletion with a
-- number below epoch - 1 does not delete the settings any more.
-- errors: ERR layout (the partition is in use already)
-- Bound: what is given.
G.export('copy_settings', {}, function(q, r)
  if r.used_from > 0 then
    local stored = M.number(q)
    if stored >= r.used_from then return M.refusal(q, stored, r.used_from) end
    remove_settings(q)
    if M.deleted(q) > 0 then M.note_deleted(q, r.epoch - 1) end
  end
  for i = 1, #r.settings, 2 do
    if r.settings[i] ~= 'features' then
      redis.call('HSET', q.meta, r.settings[i], r.settings[i + 1])
    else
      for feature in string.gmatch(r.settings[i + 1], '[^,]+') do G.use_feature(q, feature) end
    end
  end
  for i = 1, #r.limits, 2 do
    if r.limits[i + 1] == '' then
      redis.call('HDEL', q.fair_limits, r.limits[i])
    else
      redis.call('HSET', q.fair_limits, r.limits[i], r.limits[i + 1])
    end
  end
  for i = 1, #r.groups do
    local group = r.groups[i]
    local name, settings = group[GROUP.name], group[GROUP.settings]
    local key = q.P .. 'group:' .. name
    if #settings == 0 then
      redis.call('HDEL', key, unpack(OF_GROUP))
      if redis.call('EXISTS', key) == 0 and redis.call('HGET', q.ordering, name) == '0' then
        redis.call('HDEL', q.ordering, name) -- it never had a job
      end
    else
      redis.call('HSET', key, unpack(settings))
      redis.call('HSETNX', key, 'nextSeq', '1')
      redis.call('HSETNX', q.ordering, name, '0')
    end
  end
  return 1
end)

-- note_settings: count a change of settings or limits, after it was made. A change of the partitions that has begun before
-- copies the settings again.
--   KEYS 1 meta (of partition 0)   -> packed {number of the layout, changing ('' = no change of the partitions has begun)}
-- changing: limits of the queue while they are divided (hold_limits).
-- Bound: constant.
G.export('note_settings', { 'allow-oom' }, function(q)
  redis.call('HINCRBY', q.meta, 'settingsNumber', 1)
  local changing = redis.call('HGET', q.meta, 'changingLimits')
  local number = G.count_of(redis.call('HGET', q.meta, M.FIELD))
  return G.replies.note_settings({ number = number, changing = changing or '' })
end)

-- hold_limits: store the limits of the whole queue before they are divided. Clients do not change them until then.
--   KEYS 1 meta (of partition 0)   ARGV 1 packed {limits, settings}   -> 1; 0 = settings have changed, nothing was stored
-- limits: text, with the number of the coming layout. settings: as for set_layout.
-- Bound: constant.
G.export('hold_limits', {}, function(q, r)
  if settings_number(q) ~= r.settings then return 0 end
  redis.call('HSET', q.meta, 'changingLimits', r.limits)
  return 1
end)

-- dedup_keys: return the dedup ids whose jobs may still be found by an add.
--   KEYS 1 meta   ARGV 1 packed {start, count}   -> packed list of ids
-- start: number of ids to skip. An id stays for at least an hour after its last add.
-- Bound: a page of `count` ids.
G.export('dedup_keys', { 'no-writes' }, function(q, r)
  local now = G.int(G.now(q))
  return cmsgpack.pack(redis.call('ZRANGEBYSCORE', q.dedup_expiry, '(' .. now, '+inf', 'LIMIT', r.start, r.count))
end)
