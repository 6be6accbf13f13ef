-- Write the group settings of an add: limits, and the job's turn. A spec `s` as in wire_library/adding.lua.
local M = G.groups

M.too_costly = function(s)
  return s.group ~= nil and s.tb_capacity > 0 and (s.cost > 0 and s.cost or 1000) > s.tb_capacity
end

local function set_if_different(key, field, value)
  local text = G.text(value)
  if redis.call('HGET', key, field) ~= text then redis.call('HSET', key, field, text) end
end

M.set_rate = function(key, s)
  if s.rate_max > 0 then
    set_if_different(key, 'rateMax', s.rate_max)
    set_if_different(key, 'rateDuration', s.rate_duration)
  elseif redis.call('HEXISTS', key, 'rateMax') == 1 then
    redis.call('HDEL', key, 'rateMax', 'rateDuration', 'rateWindowStart', 'rateCount')
  end
end

M.set_bucket = function(key, s)
  if s.tb_capacity > 0 then
    local first = redis.call('HEXISTS', key, 'tbTokens') == 0
    set_if_different(key, 'tbCapacity', s.tb_capacity)
    set_if_different(key, 'tbRefillRate', s.tb_rate)
    if first then
      redis.call('HSET', key, 'tbTokens', G.text(s.tb_capacity), 'tbLastRefill', s.timestamp_text,
        'tbRefillRemainder', '0')
    end
  elseif redis.call('HEXISTS', key, 'tbCapacity') == 1 then
    redis.call('HDEL', key, 'tbCapacity', 'tbRefillRate', 'tbTokens', 'tbLastRefill', 'tbRefillRemainder')
  end
end

-- Set how many jobs of the group may be active. If it is more than before, the next exchange starts parked jobs.
M.set_concurrency = function(q, name, concurrency)
  local key, text = q.P .. 'group:' .. name, G.text(concurrency)
  local before = redis.call('HGET', key, 'maxConcurrency')
  if before == text then return end
  redis.call('HSET', key, 'maxConcurrency', text)
  if before and concurrency > G.num(before) and redis.call('EXISTS', q.P .. 'groupq:' .. name) == 1 then
    redis.call('ZADD', q.ratelimited, 'NX', '1', name)
  end
end

-- Set the limits of a group: the last add to a group decides.
M.set_group = function(q, s)
  local key = q.P .. 'group:' .. s.group
  M.set_concurrency(q, s.group, s.concurrency > 0 and s.concurrency or 1)
  redis.call('HSETNX', key, 'nextSeq', '1')
  M.set_rate(key, s)
  M.set_bucket(key, s)
end

-- Return the next sequence. A counter with an unusable value restarts above all known sequences: of jobs with the same
-- sequence, all get their turn.
M.next_seq = function(q, group)
  local seq = G.pcall('HINCRBY', q.ordering, group, 1)
  if not G.must_restart(seq) and seq > 0 then return seq end
  local g = M.group(q, group)
  seq = math.max(1, g.nextSeq, (M.last_place(g) or 0) + 1)
  redis.call('HSET', q.ordering, group, G.int(seq))
  return seq
end

