#!lua name=documented
-- The documented functions a peer's worker, producer and operator call most, with the faults that
-- docs/reference/wire-library.md says ours are without: what another client's library may be on a queue of ours. For
-- tests alone; written from the protocol's description. No function says which job it is for but by its arguments.
local BAND = 4398046511104
local function call(...) return redis.call(...) end -- not there yet while a library loads
local function num(x, d) return tonumber(x or '') or d or 0 end
local function int(x) return string.format('%.0f', x) end
local function P_of(key, suffix) return string.sub(key, 1, -#suffix - 1) end
local function get(key)
  local flat, h = call('HGETALL', key), {}
  for i = 1, #flat, 2 do h[flat[i]] = flat[i + 1] end
  return h, #flat > 0, flat
end
local function emit(P, ...) call('XADD', P .. 'events', 'MAXLEN', '~', '1000', '*', ...) end
local function push(P, id, name) call('XADD', P .. 'stream', '*', 'jobId', id, 'name', name or '') end
local function ldecr(P)
  if num(call('GET', P .. 'list-active')) > 0 then call('DECR', P .. 'list-active') end
end
local function ack(P, group, entry)
  if entry ~= '' then
    call('XACK', P .. 'stream', group, entry)
    call('XDEL', P .. 'stream', entry)
  end
end

-- ------------------------------------------------------------------ groups

local function skip(key, n)
  local from = n
  for _ = 1, 128 do
    if call('HDEL', key, 'skip:' .. int(n)) == 0 then break end
    n = n + 1
  end
  if n > from and from > 0 then call('HSET', key, 'nextSeq', int(n)) end
  return n
end

local function gscore(id, h)
  local seq = num(h.orderingSeq)
  return seq > 0 and seq or num(id)
end

local function release(P, id, now, name)
  name = name or call('HGET', P .. 'job:' .. id, 'groupKey')
  if not name then return end
  local key, queue = P .. 'group:' .. name, P .. 'groupq:' .. name
  local g = get(key)
  local active, most = num(g.active), num(g.maxConcurrency)
  if active > 0 then
    active = active - 1
    call('HSET', key, 'active', int(active))
  end
  if call('ZCARD', queue) == 0 or (most > 0 and active >= most) then return end
  local room = 1000
  if now > 0 and num(g.rateMax) > 0 and now - num(g.rateWindowStart) < num(g.rateDuration) then
    if num(g.rateCount) >= num(g.rateMax) then
      call('ZADD', P .. 'ratelimited', int(num(g.rateWindowStart) + num(g.rateDuration)), name)
      return
    end
    room = num(g.rateMax) - num(g.rateCount)
  end
  local budget = math.min(room, most > 0 and most - active or call('ZCARD', queue))
  local expected = skip(key, num(g.nextSeq))
  for _ = 1, budget + 20 do
    if budget <= 0 then return end
    local head = call('ZPOPMIN', queue)
    if not head[1] then return end
    local job = P .. 'job:' .. head[1]
    if call('HGET', job, 'state') == 'group-waiting' then
      local seq = num(call('HGET', job, 'orderingSeq'))
      if expected > 0 and seq > expected then
        call('ZADD', queue, head[2], head[1])
        return
      end
      push(P, head[1], call('HGET', job, 'name'))
      call('HSET', job, 'state', 'waiting')
      budget, expected = budget - 1, expected + 1
    end
  end
end

local function park(P, id, h, name, state)
  call('ZADD', P .. 'groupq:' .. name, int(gscore(id, h)), id)
  call('HSET', P .. 'job:' .. id, 'state', 'group-waiting')
  return state
end

-- nil = it may run, and its group has been charged.
local function gate(P, id, h, now, is_next)
  local name = h.groupKey
  if not name then return nil end
  local key = P .. 'group:' .. name
  local g, seq = get(key), num(h.orderingSeq)
  local expected = skip(key, num(g.nextSeq))
  local returning = seq > 0 and expected > 0 and seq < expected
  if seq > expected and expected > 0 then return park(P, id, h, name, 'GROUP_ORDERED') end
  if not returning and num(g.maxConcurrency) > 0 and num(g.active) >= num(g.maxConcurrency) then
    return park(P, id, h, name, 'GROUP_FULL')
  end
  if num(g.rateMax) > 0 and (is_next or not returning) and now - num(g.rateWindowStart) < num(g.rateDuration)
    and num(g.rateCount) >= num(g.rateMax) then
    call('ZADD', P .. 'ratelimited', int(num(g.rateWindowStart) + num(g.rateDuration)), name)
    return park(P, id, h, name, 'GROUP_RATE_LIMITED')
  end
  if num(g.rateMax) > 0 then
    if now - num(g.rateWindowStart) >= num(g.rateDuration) then
      call('HSET', key, 'rateWindowStart', int(now), 'rateCount', '1')
    else
      call('HINCRBY', key, 'rateCount', 1)
    end
  end
  if not returning then
    call('HINCRBY', key, 'active', 1)
    if seq > 0 then call('HSET', key, 'nextSeq', int(seq + 1)) end
  end
  if seq > 0 then call('ZREM', P .. 'groupq:' .. name, id) end
  return nil
end

local function end_failed(P, id, now, reason, event)
  call('ZADD', P .. 'failed', int(now), id)
  call('HSET', P .. 'job:' .. id, 'state', 'failed', 'failedReason', reason, 'finishedOn', int(now))
  emit(P, 'event', event, 'jobId', id)
end

local function expired(P, id, h, now)
  local at = num(h.expireAt)
  if at <= 0 or now <= at then return false end
  if h.state ~= 'failed' then
    end_failed(P, id, now, 'expired', 'expired')
    if h.state == 'active' then release(P, id, now) end
  end
  return true
end

local function begin(P, id, now)
  call('HSET', P .. 'job:' .. id, 'state', 'active', 'processedOn', int(now), 'lastActive', int(now))
end

-- ------------------------------------------------------------------ producers

local function addJob(keys, a)
  local P = P_of(keys[1], 'id')
  local id, now, delay, priority = int(call('INCR', keys[1])), num(a[4]), num(a[5]), num(a[6])
  local job, name = P .. 'job:' .. id, a[9]
  local state = delay > 0 and 'delayed' or priority > 0 and 'prioritized' or 'waiting'
  if name ~= '' then
    local key = P .. 'group:' .. name
    call('HSET', job, 'groupKey', name, 'orderingSeq', int(call('HINCRBY', P .. 'ordering', name, 1)))
    call('HSET', key, 'maxConcurrency', int(math.max(1, num(a[10]))))
    call('HSETNX', key, 'nextSeq', '1')
    if num(a[11]) > 0 then
      call('HSET', key, 'rateMax', a[11], 'rateDuration', a[12])
    else
      call('HDEL', key, 'rateMax', 'rateDuration', 'rateWindowStart', 'rateCount')
    end
  end
  call('HSET', job, 'id', id, 'name', a[1], 'data', a[2], 'opts', a[3], 'timestamp', a[4], 'attemptsMade', '0', 'delay',
    a[5], 'priority', a[6], 'maxAttempts', a[8], 'state', state)
  if a[18] == '1' then call('HSET', job, 'lifo', '1') end
  if num(a[16]) > 0 then call('HSET', job, 'expireAt', int(now + num(a[16]))) end
  if delay > 0 then
    call('ZADD', P .. 'scheduled', int(priority * BAND + now + delay), id)
  elseif priority > 0 then
    call('ZADD', P .. 'scheduled', int(priority * BAND), id)
  elseif a[18] == '1' then
    call('RPUSH', P .. 'lifo', id)
  else
    push(P, id, a[1])
  end
  return id
end

local function promote(keys, a)
  local P, now, n = P_of(keys[1], 'scheduled'), num(a[1]), 0
  for _, band in ipairs({ 0, 1, 2, 3, 5 }) do
    local due = call('ZRANGEBYSCORE', keys[1], int(band * BAND), int(band * BAND + now), 'LIMIT', 0, 1000)
    for _, id in ipairs(due) do
      local h = get(P .. 'job:' .. id)
      call('ZREM', keys[1], id)
      n = n + 1
      if not expired(P, id, h, now) then
        if h.lifo == '1' then
          call('RPUSH', P .. 'lifo', id)
        elseif band > 0 then
          call('LPUSH', P .. 'priority', id)
        else
          push(P, id, h.name)
        end
        call('HSET', P .. 'job:' .. id, 'state', 'waiting')
      end
    end
  end
  return n
end

local function promoteRateLimited(keys, a)
  local P, now, n = P_of(keys[1], 'ratelimited'), num(a[1]), 0
  for _, name in ipairs(call('ZRANGEBYSCORE', keys[1], '-inf', int(now), 'LIMIT', 0, 100)) do
    call('ZREM', keys[1], name)
    local key, queue = P .. 'group:' .. name, P .. 'groupq:' .. name
    local g = get(key)
    local budget = 1000
    if num(g.rateMax) > 0 then budget = num(g.rateMax) end
    if num(g.maxConcurrency) > 0 then budget = math.min(budget, math.max(0, num(g.maxConcurrency) - num(g.active))) end
    local expected = skip(key, num(g.nextSeq))
    for _ = 1, budget + 20 do
      local head = budget > 0 and call('ZPOPMIN', queue) or {}
      if not head[1] then break end
      local job = P .. 'job:' .. head[1]
      local h = get(job)
      if h.state == 'group-waiting' and not expired(P, head[1], h, now) then
        if expected > 0 and num(h.orderingSeq) > expected then
          call('ZADD', queue, head[2], head[1])
          break
        end
        push(P, head[1], h.name)
        call('HSET', job, 'state', 'waiting')
        budget, expected, n = budget - 1, expected + 1, n + 1
      end
    end
  end
  return n
end

-- ------------------------------------------------------------------ workers

local function moveToActive(keys, a)
  local id, now, entry, group = a[4], num(a[1]), a[2], a[3]
  local P = P_of(keys[1], 'job:' .. id)
  local h, there = get(keys[1])
  if not there then return '' end
  if h.revoked == '1' then return 'REVOKED' end
  if expired(P, id, h, now) then
    ack(P, group, entry)
    return 'EXPIRED'
  end
  local refusal = gate(P, id, h, now)
  if refusal then
    ack(P, group, entry)
    return refusal
  end
  begin(P, id, now)
  return call('HGETALL', keys[1])
end

local function finish(P, id, entry, value, now, group)
  ack(P, group, entry)
  call('ZADD', P .. 'completed', int(now), id)
  call('HSET', P .. 'job:' .. id, 'state', 'completed', 'returnvalue', value, 'finishedOn', int(now))
  release(P, id, now)
  emit(P, 'event', 'completed', 'jobId', id, 'returnvalue', value)
  if entry == '' then ldecr(P) end
end

local function complete(keys, a)
  finish(P_of(keys[4], 'job:' .. a[1]), a[1], a[2], a[3], num(a[4]), a[5])
  return 1
end

local function from_lists(P, now)
  for _, list in ipairs({ 'priority', 'lifo' }) do
    for _ = 1, 3 do
      local id = call('RPOP', P .. list)
      if not id then break end
      local h, there = get(P .. 'job:' .. id)
      if there and h.revoked ~= '1' and not expired(P, id, h, now) then
        if list == 'lifo' or not gate(P, id, h, now, true) then
          begin(P, id, now)
          call('INCR', P .. 'list-active')
          return id
        end
      end
    end
  end
end

local function completeAndFetchNext(keys, a)
  local P, now, group = P_of(keys[4], 'job:' .. a[1]), num(a[4]), a[5]
  finish(P, a[1], a[2], a[3], now, group)
  local id, entry = from_lists(P, now), ''
  if not id then
    local reply = call('XREADGROUP', 'GROUP', group, a[6], 'COUNT', 1, 'STREAMS', keys[1], '>')
    if not reply then return { 'NEXT_NONE', a[1] } end
    entry, id = reply[1][2][1][1], reply[1][2][1][2][2]
    local h = get(P .. 'job:' .. id)
    if not h.state then return { 'NEXT_NONE', a[1] } end
    if h.revoked == '1' then return { 'NEXT_REVOKED', a[1], id, entry } end
    if expired(P, id, h, now) or gate(P, id, h, now, true) then
      ack(P, group, entry)
      return { 'NEXT_NONE', a[1] }
    end
    begin(P, id, now)
  end
  local answer = { 'NEXT_HASH', a[1], id, entry }
  for _, text in ipairs(call('HGETALL', P .. 'job:' .. id)) do answer[#answer + 1] = text end
  return answer
end

local function fail(keys, a)
  local id, entry, now = a[1], a[2], num(a[4])
  local P, job = P_of(keys[5], 'job:' .. id), keys[5]
  ack(P, a[7], entry)
  local attempts, h = call('HINCRBY', job, 'attemptsMade', 1), get(job)
  if entry == '' then ldecr(P) end
  if num(a[5]) > 0 and attempts < num(a[5]) then
    call('ZADD', P .. 'scheduled', int(num(h.priority) * BAND + now + num(a[6])), id)
    call('HSET', job, 'state', 'delayed', 'failedReason', a[3], 'processedOn', int(now))
    if num(h.orderingSeq) == 0 then release(P, id, now) end
    return 'retrying'
  end
  end_failed(P, id, now, a[3], 'failed')
  release(P, id, now)
  return 'failed'
end

local function moveActiveToDelayed(keys, a)
  local id, entry, now = a[1], a[2], num(a[3])
  local P, h = P_of(keys[1], 'job:' .. id), get(keys[1])
  if h.state ~= 'active' then return 'error:not_active' end
  ack(P, a[5], entry)
  local due = math.max(now, num(a[4]))
  call('ZADD', P .. 'scheduled', int(num(h.priority) * BAND + due), id)
  call('HSET', keys[1], 'state', 'delayed', 'delay', int(due - now))
  if entry == '' then ldecr(P) end
  if num(h.orderingSeq) == 0 then release(P, id, now) end
  return 'ok'
end

local function popLists(keys, a)
  local ids = call('RPOP', keys[1], num(a[1], 1)) or {}
  if #ids > 0 then return ids end
  return call('RPOP', keys[2], num(a[1], 1)) or {}
end

-- ------------------------------------------------------------------ recovery

local function stall(P, id, most, now)
  if call('HINCRBY', P .. 'job:' .. id, 'stalledCount', 1) > most then
    end_failed(P, id, now, 'job stalled more than maxStalledCount', 'failed')
    release(P, id, now)
    return true
  end
  emit(P, 'event', 'stalled', 'jobId', id)
  return false
end

local function reclaimStalled(keys, a)
  local P, now, n = P_of(keys[1], 'stream'), num(a[5]), 0
  for _, e in ipairs(call('XAUTOCLAIM', keys[1], a[1], a[2], a[3], '0-0')[2]) do
    local id = e[2] and e[2][2]
    if id then
      local h = get(P .. 'job:' .. id)
      n = n + 1
      if expired(P, id, h, now) then
        ack(P, a[1], e[1])
      elseif not (now - num(h.lastActive) < (num(a[8]) > 0 and num(a[8]) or num(a[3]))) then
        local failed = stall(P, id, num(a[4], 1), now)
        ack(P, a[1], e[1])
        if not failed then
          call('HSET', P .. 'job:' .. id, 'state', 'waiting')
          call('HDEL', P .. 'job:' .. id, 'processedOn', 'lastActive')
          push(P, id, h.name)
        end
      end
    end
  end
  return n
end

local function active_list_jobs(P, each)
  local cursor, n = '0', 0
  repeat
    local page = call('SCAN', cursor, 'MATCH', P .. 'job:*', 'COUNT', 500)
    cursor = page[1]
    for _, key in ipairs(page[2]) do
      local h = get(key)
      if h.state == 'active' and (h.lifo == '1' or num(h.priority) > 0) then
        n = n + 1
        if each then each(string.sub(key, #P + 5), h) end
      end
    end
  until cursor == '0'
  return n
end

local function reclaimStalledListJobs(keys, a)
  local P, now, n = P_of(keys[1], 'stream'), num(a[3]), 0
  if num(call('GET', P .. 'list-active')) <= 0 then return 0 end
  active_list_jobs(P, function(id, h)
    if now - num(h.lastActive) < num(a[1]) then return end
    n = n + 1
    call('HSET', P .. 'job:' .. id, 'lastActive', int(now))
    if not expired(P, id, h, now) and not stall(P, id, num(a[2], 1), now) then
      call('HSET', P .. 'job:' .. id, 'state', 'waiting')
      call('HDEL', P .. 'job:' .. id, 'processedOn', 'lastActive')
      call(h.lifo == '1' and 'RPUSH' or 'LPUSH', P .. (h.lifo == '1' and 'lifo' or 'priority'), id)
    end
    ldecr(P)
  end)
  return n
end

local function healListActive(keys)
  local P = P_of(keys[1], 'id')
  local counter = num(call('GET', P .. 'list-active'))
  if counter <= 0 then return 0 end
  local drift = counter - active_list_jobs(P)
  if drift > 0 then call('DECRBY', P .. 'list-active', drift) end
  return drift
end

-- ------------------------------------------------------------------ operators

local function removeJob(keys, a)
  local id = a[1]
  local P, h = P_of(keys[1], 'job:' .. id), get(keys[1])
  if not h.state then return 0 end
  if h.groupKey and h.state == 'active' then release(P, id, 0) end
  if h.groupKey and h.state == 'group-waiting' then call('ZREM', P .. 'groupq:' .. h.groupKey, id) end
  if h.state == 'active' and (h.lifo == '1' or num(h.priority) > 0) then ldecr(P) end
  for _, key in ipairs({ 'scheduled', 'completed', 'failed', 'suspended' }) do call('ZREM', P .. key, id) end
  call('UNLINK', keys[1], keys[7])
  return 1
end

local function revoke(keys, a)
  local id, now = a[1], num(a[2])
  local P, h = P_of(keys[1], 'job:' .. id), get(keys[1])
  if not h.state then return 'not_found' end
  call('HSET', keys[1], 'revoked', '1')
  if h.state == 'group-waiting' then
    call('ZREM', P .. 'groupq:' .. h.groupKey, id)
  elseif h.state == 'waiting' or h.state == 'delayed' or h.state == 'prioritized' then
    call('ZREM', P .. 'scheduled', id)
    for _, e in ipairs(call('XRANGE', keys[2], '-', '+')) do
      if e[2][2] == id then ack(P, a[3], e[1]) end
    end
  else
    return 'flagged'
  end
  end_failed(P, id, now, 'revoked', 'revoked')
  return 'revoked'
end

local function drain(keys, a)
  local P, n, held = P_of(keys[4], 'id'), 0, {}
  for _, p in ipairs(call('XPENDING', keys[1], a[2], '-', '+', 10000)) do held[p[1]] = true end
  for _, e in ipairs(call('XRANGE', keys[1], '-', '+')) do
    if not held[e[1]] then
      call('XDEL', keys[1], e[1])
      n = n + call('UNLINK', P .. 'job:' .. e[2][2])
    end
  end
  if a[1] == '1' then
    for _, id in ipairs(call('ZRANGE', keys[2], 0, -1)) do n = n + call('UNLINK', P .. 'job:' .. id) end
    call('DEL', keys[2])
  end
  for i = 5, 6 do
    for _, id in ipairs(call('LRANGE', keys[i], 0, -1)) do n = n + call('UNLINK', P .. 'job:' .. id) end
    call('DEL', keys[i])
  end
  return n
end

redis.register_function('documented_addJob', addJob)
redis.register_function('documented_promote', promote)
redis.register_function('documented_promoteRateLimited', promoteRateLimited)
redis.register_function('documented_moveToActive', moveToActive)
redis.register_function('documented_complete', complete)
redis.register_function('documented_completeAndFetchNext', completeAndFetchNext)
redis.register_function('documented_fail', fail)
redis.register_function('documented_moveActiveToDelayed', moveActiveToDelayed)
redis.register_function('documented_popLists', popLists)
redis.register_function('documented_reclaimStalled', reclaimStalled)
redis.register_function('documented_reclaimStalledListJobs', reclaimStalledListJobs)
redis.register_function('documented_healListActive', healListActive)
redis.register_function('documented_removeJob', removeJob)
redis.register_function('documented_revoke', revoke)
redis.register_function('documented_drain', drain)
