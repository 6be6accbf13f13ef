-- What the functions of the wire face share (docs/reference/wire-library.md): arguments, keys, jobs and their places.
-- Here times come from the client, and keys and arguments are those that the protocol documents.

G.W = {}
local W = G.W

-- ------------------------------------------------------------------ arguments

W.num = function(text, default)
  local n = tonumber(text or '')
  if not n or n ~= n or n == math.huge or n == -math.huge then return default or 0 end
  return n
end

-- Numbers as a peer writes them: whole ones with all their digits.
W.text = function(n)
  if n == math.floor(n) then return G.int(n) end
  return tostring(n)
end

W.score = function(n)
  if n == math.floor(n) then return G.int(n) end
  return string.format('%.17g', n)
end

-- An argument that may be missing; '' stands for absence.
W.given = function(text)
  if text and text ~= '' then return text end
  return nil
end

W.json = function(text)
  local ok, value = pcall(cjson.decode, text or '')
  if ok and type(value) == 'table' then return value end
  return nil
end

-- ------------------------------------------------------------------ keys

-- The queue of a key that ends in `suffix`, for example `P:stream` and 'stream'.
W.queue = function(key, suffix)
  local P = string.sub(key, 1, -#suffix - 1)
  if key ~= P .. suffix or string.sub(P, -1) ~= ':' then error('key ' .. key .. ' does not end in :' .. suffix) end
  return G.queue(P .. 'meta')
end

W.job_queue = function(key, id) return W.queue(key, 'job:' .. id) end

-- ------------------------------------------------------------------ jobs

local TERMINAL = { completed = true, failed = true }
W.TERMINAL = TERMINAL

-- All fields of a hash: by name, and flat as the server gives them. nil where there is none.
W.read = function(key)
  local flat = redis.call('HGETALL', key)
  if #flat == 0 then return nil, flat end
  local h = {}
  for i = 1, #flat, 2 do h[flat[i]] = flat[i + 1] end
  return h, flat
end

-- Named fields of a hash; absent ones are nil.
W.pick = function(key, ...)
  local names, h = { ... }, {}
  local values = redis.call('HMGET', key, ...)
  for i = 1, #names do
    if values[i] then h[names[i]] = values[i] end
  end
  return h
end

-- What every routine here may need to know of a job that changes hands.
W.job = function(q, id)
  return W.pick(q.J .. id, 'state', 'name', 'groupKey', 'orderingSeq', 'slot', 'eid', 'lifo', 'priority', 'opts',
    'processedOn', 'lastActive', 'expireAt', 'revoked', 'cost', 'timestamp', 'src')
end

-- ------------------------------------------------------------------ places

-- XADDJOB: to the end of the stream. `eid` lets a job be found there again without a search.
W.push_stream = function(q, id, name)
  redis.call('HSET', q.J .. id, 'state', 'waiting', 'eid', G.push_stream(q, id, name))
end

-- Idle workers of glidemq_py block on a stream of markers; it exists where there are such workers.
W.wake = function(q)
  if redis.call('EXISTS', q.wake) == 1 then G.wake(q, 1) end
end

-- Lists are popped on the right: LIFO jobs are pushed there, due priority jobs on the other side.
W.push_list = function(q, list, id)
  redis.call(list == 'lifo' and 'RPUSH' or 'LPUSH', q[list], id)
  redis.call('HSET', q.J .. id, 'state', 'waiting', 'eid', '')
  W.wake(q)
end

-- A due or promoted job, to the source it is taken from.
W.make_ready = function(q, id, h, priority)
  if h.lifo == '1' then
    W.push_list(q, 'lifo', id)
  elseif priority > 0 then
    W.push_list(q, 'priority', id)
  else
    W.push_stream(q, id, h.name)
  end
end

-- Acknowledge an entry; a broadcast entry stays in the stream for other groups. Returns 1 if it was pending.
W.ack = function(q, group, entry, broadcast)
  if not entry or entry == '' then return 0 end
  local acked = redis.call('XACK', q.stream, group or '', entry)
  if not broadcast then redis.call('XDEL', q.stream, entry) end
  return acked
end

-- Whether a call that brings `entry` (and has just acknowledged it) speaks for the job's present attempt (W7):
-- its entry was still pending, or the job is active and no other entry is known to have activated it.
W.is_current = function(h, entry, acked)
  local state = h.state
  if not state or TERMINAL[state] then return false end
  if entry ~= '' and acked == 1 and state == 'waiting' then return true end
  if state == 'active' then
    if entry == '' then return h.src ~= 's' end
    return acked == 1 or not h.eid or h.eid == entry
  end
  -- A list job that was refused as revoked is failed by its worker without having been active.
  return entry == '' and h.revoked == '1' and (state == 'waiting' or state == 'prioritized')
end
