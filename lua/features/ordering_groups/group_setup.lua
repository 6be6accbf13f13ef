-- Write the group settings of an add: limits, and the job's turn. A spec `s` as in wire_library/adding.lua.
local M = G.groups

M.too_costly = function(s)
  return s.group ~= nil and s.tb_capacity > 0 and (s.cost > 0 and s.cost or 1000) > s.tb_capacity
end

local function set_if_different(key, field, value)
  local text = G.text(value)
  if redis.call('HGET', key, field) ~= text then redis.call('HSET', key, field, text) end
end

M.set_rate = function(key, max, duration)
  if max > 0 then
    set_if_different(key, 'rateMax', max)
    set_if_different(key, 'rateDuration', duration)
  elseif redis.call('HEXISTS', key, 'rateMax') == 1 then
    redis.call('HDEL', key, 'rateMax', 'rateDuration', 'rateWindowStart', 'rateCount')
  end
end

M.set_bucket = function(key, capacity, rate, now)
  if capacity > 0 then
    local first = redis.call('HEXISTS', key, 'tbTokens') == 0
    set_if_different(key, 'tbCapacity', capacity)
    set_if_different(key, 'tbRefillRate', rate)
    if first then
      redis.call('HSET', key, 'tbTokens', G.text(capacity), 'tbLastRefill', G.text(now), 'tbRefillRemainder', '0')
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
  M.set_rate(key, s.rate_max, s.rate_duration)
  M.set_bucket(key, s.tb_capacity, s.tb_rate, s.timestamp)
end

-- A call that adds many jobs counts the sequences of their groups itself: it reads them before the first job, and writes
-- them after the last one, also if one fails between.
-- Such a call's turns:
--   names   the groups
--   last    by group: the sequence issued last; 0 = none, and the group has no record yet unless `width` has it;
--                   false = it is not known before a job has joined
--   stored  as `last` was read, in the order of the names
--   width   by group: the concurrency of the last job that has set up the group
local PAGE = 500

local function each_page(count, callback)
  for from = 1, count, PAGE do callback(from, math.min(from + PAGE - 1, count)) end
end

-- Read the sequences of groups. A group that has issued one and has a record has all its fields. One that is neither such
-- nor quite new is read when a job joins it. last: the groups -> false. Return the turns.
M.read_turns = function(q, names, last)
  local issued, unused, stored, start = {}, {}, {}, q.P .. 'group:'
  each_page(#names, function(from, to)
    local found = redis.call('HMGET', q.ordering, unpack(names, from, to))
    for i = from, to do
      local name, text = names[i], found[i - from + 1]
      local n = text and G.count_of(text) or 0
      stored[i] = n
      if n > 0 then
        last[name], issued[#issued + 1] = n, start .. name
      elseif not text then
        last[name], unused[#unused + 1] = 0, start .. name
      end
    end
  end)
  local all_there, none_there = G.sum_of('EXISTS', issued) == #issued, G.sum_of('EXISTS', unused) == 0
  for i = 1, all_there and none_there and 0 or #names do
    local n = last[names[i]]
    if n == 0 and not none_there or n and n > 0 and not all_there then last[names[i]] = false end
  end
  return { names = names, last = last, stored = stored, width = {} }
end

M.write_turns = function(q, turns)
  local names, last, stored = turns.names, turns.last, turns.stored
  each_page(#names, function(from, to)
    local fields, n = {}, 0
    for i = from, to do
      local seq = last[names[i]]
      if seq and seq ~= stored[i] then fields[n + 1], fields[n + 2], n = names[i], G.int(seq), n + 2 end
    end
    if n > 0 then G.set_fields(redis.call, q.ordering, fields) end
  end)
end

-- Return the next sequence. A counter with an unusable value restarts above all known sequences: of jobs with the same
-- sequence, all get their turn.
M.next_seq = function(q, group)
  local adding = rawget(q, 'adding_many')
  local turns = adding and adding.turns
  local last = turns and turns.last[group]
  if last then
    turns.last[group] = last + 1
    return last + 1
  end
  local seq = G.pcall('HINCRBY', q.ordering, group, 1)
  if G.must_restart(seq) or seq <= 0 then
    local g = M.group(q, group)
    seq = math.max(1, g.nextSeq, (M.last_place(g) or 0) + 1)
    redis.call('HSET', q.ordering, group, G.int(seq))
  end
  if last == false then turns.last[group] = seq end
  return seq
end
