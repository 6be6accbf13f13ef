-- Apply the retention of finished jobs, and delete all keys of a job.

local RETENTION = G.rows.retention
local PURGE_MAX = 1000
local UNLINK_MAX = 700 -- keys per command, about

-- Delete jobs with all their keys.
G.purge = function(q, ids)
  local keys, n, call, satellites = {}, 0, redis.call, G.satellites
  for i = 1, #ids do
    keys[n + 1], keys[n + 2], keys[n + 3], keys[n + 4], keys[n + 5], keys[n + 6], keys[n + 7] = q.J .. ids[i],
      satellites(q, ids[i])
    n = n + 7
    if n > UNLINK_MAX then
      call('UNLINK', unpack(keys))
      keys, n = {}, 0
    end
  end
  if n > 0 then call('UNLINK', unpack(keys)) end
end

-- Remember that jobs of this queue may have keys besides their record: to be called before the first of them is written.
G.mark_side_keys = function(q)
  if rawget(q, 'side_keys_marked') then return end
  q.side_keys_marked = true
  G.pcall('HSETNX', q.meta, 'sideKeys', '1')
end

-- Delete the records of jobs that have no other keys.
G.delete_records = function(q, ids)
  local keys, J = {}, q.J
  for i = 1, #ids do keys[i] = J .. ids[i] end
  G.sum_of('UNLINK', keys)
end

-- A job that has not ended (a peer retried it and left it in the index) is only removed from the index.
local function purge_from(q, zset, ids)
  if #ids == 0 then return end
  local ended, run, J = {}, redis.pcall, q.J
  for i = 1, #ids do
    local state = run('HGET', J .. ids[i], 'state')
    if state ~= 'completed' and state ~= 'failed' then G.raise_denied(state) end
    if type(state) ~= 'string' or G.TERMINAL[state] then ended[#ended + 1] = ids[i] end
  end
  G.results.before_delete(q, ended)
  G.purge(q, ended)
  redis.call('ZREM', zset, unpack(ids))
end

-- Delete members of the index of a terminal state; the job of one that is in another state stays. Return the ids of the
-- deleted jobs, and how many members were removed.
G.delete_ended = function(q, index, state, members, now)
  local ids = {}
  if #members == 0 then return ids, 0 end
  for _, id in ipairs(members) do
    local h = G.pcall('HMGET', q.J .. id, 'state', 'parentId', 'parentIds')
    local is_in, parent, parents = unpack(h)
    if not h.err and (not is_in or is_in == state) then ids[#ids + 1] = id end
    -- Its parents are already notified, unless a peer failed it.
    if state == 'failed' and is_in == state and (parent or parents) then
      G.flows.child_ended(q, id, G.flows.REMOVED, 'failed', now)
    end
  end
  G.results.before_delete(q, ids)
  G.purge(q, ids)
  return ids, redis.call('ZREM', index, unpack(members))
end

-- keep: nil keeps all; {count, age_seconds} keeps the newest `count` (0 = any number) younger than `age` (0 = any).
G.retain = function(q, zset, keep, now)
  local count, age = keep[RETENTION.count] or 0, keep[RETENTION.age] or 0
  if age > 0 then
    local limit = G.int(now - age * 1000)
    purge_from(q, zset, redis.call('ZRANGEBYSCORE', zset, '-inf', limit, 'LIMIT', 0, PURGE_MAX))
  end
  if count > 0 then
    local excess = redis.call('ZCARD', zset) - count
    if excess > 0 then
      purge_from(q, zset, redis.call('ZRANGE', zset, 0, math.min(excess, PURGE_MAX) - 1))
    end
  end
end

-- Return the rule of an option, as a report has it: {count, age s}, 1 = delete the job immediately, 0 = keep it.
G.rule_of = function(option)
  if option == true then return 1 end
  if type(option) == 'number' then option = { count = option } end
  return type(option) == 'table' and { G.count_of(option.count), G.count_of(option.age) } or 0
end

-- Apply the retention of a job that failed without a worker reporting its rule: stalled, expired, revoked. Its record
-- must not be written after this.
G.retain_failed = function(q, id, now)
  local opts = redis.call('HGET', q.J .. id, 'opts') or ''
  if not string.find(opts, '"removeOnFail"', 1, true) then return end
  local rule = G.rule_of(G.json(opts).removeOnFail)
  if rule == 1 then
    redis.call('ZREM', q.failed, id)
    G.results.left(q, 1)
    G.purge(q, { id })
  elseif rule ~= 0 then
    G.retain(q, q.failed, rule, now)
  end
end
