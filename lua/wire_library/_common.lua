-- Share helpers of the wire library (docs/reference/wire-library.md): arguments, keys, jobs and their places. Here
-- times come from the client, and keys and arguments are those of the protocol.

-- The group functions of both libraries are available in W too (inheritance is not possible while a library loads).
G.W = G.groups
local W = G.W

-- ------------------------------------------------------------------ arguments


-- Bounds of one call of an operator's function, if the protocol names none; the next call continues.
W.JOBS_A_CALL, W.PAGES_A_CALL = 1000, 5
local PAGE = 1000


-- ------------------------------------------------------------------ keys

-- Return the queue of a key that ends in `suffix`, for example `P:stream` and 'stream'.
W.queue = function(key, suffix)
  local P = string.sub(key, 1, -#suffix - 1)
  if key ~= P .. suffix or string.sub(P, -1) ~= ':' then error('key ' .. key .. ' does not end in :' .. suffix) end
  return G.queue(P .. 'meta')
end

W.job_queue = function(key, id) return W.queue(key, 'job:' .. id) end

-- ------------------------------------------------------------------ jobs


-- Fields of a record that has more than FIELDS_MAX: a parent has one per ended child, which no worker reads.
local FIELDS_MAX = 500
local FIELDS = { 'id', 'name', 'data', 'opts', 'timestamp', 'attemptsMade', 'delay', 'priority', 'maxAttempts', 'state',
  'processedOn', 'finishedOn', 'lastActive', 'returnvalue', 'failedReason', 'progress', 'stalledCount', 'revoked',
  'expireAt', 'lifo', 'groupKey', 'orderingSeq', 'cost', 'parentId', 'parentQueue', 'parentIds', 'parentQueues',
  'schedulerName', 'signals', 'suspendReason', 'suspendedAt', 'suspendTimeout', 'depsCompleted', 'budgetKey',
  'fallbackIndex', 'slot', 'src', 'eid', 'fence', 'lease', 'takenBy', 'suspectLimit', 'failedType', 'stacktrace', 'flowId',
  'childFailed', 'notBefore', 'scheduledFor', 'orderingKey', 'tpmTokens', 'usage:model', 'usage:provider',
  'usage:costUnit', 'usage:tokens', 'usage:costs', 'usage:totalTokens', 'usage:totalCost', 'usage:latencyMs',
  'usage:cached', 'usage:bucketTs' }

-- Return the fields of a hash: by name, and flat as the server returns them; all, or with very many those of FIELDS. nil
-- if there is none.
W.read = function(key)
  local flat = redis.call('HLEN', key) > FIELDS_MAX and G.stored(key, FIELDS) or redis.call('HGETALL', key)
  if #flat == 0 then return nil, flat end
  local h = {}
  for i = 1, #flat, 2 do h[flat[i]] = flat[i + 1] end
  return h, flat
end

-- ------------------------------------------------------------------ places


-- Return the first answer of find(job id, entry id) for the first entries of a stream; nil if it has none.
W.find_in_stream = function(key, find)
  local from = '-'
  for _ = 1, W.PAGES_A_CALL do
    local page = redis.call('XRANGE', key, from, '+', 'COUNT', PAGE)
    for _, entry in ipairs(page) do
      local answer = find(G.entry_job(entry[2]), entry[1])
      if answer then return answer end
    end
    if #page < PAGE then return nil end
    from = '(' .. page[#page][1]
  end
end

-- Idle workers of glidemq_py block on a stream of markers; it exists if there are such workers.
W.wake = function(q)
  if redis.call('EXISTS', q.wake) == 1 then G.wake(q, 1) end
end

-- Lists are popped on the right: LIFO jobs are pushed there, due priority jobs on the left.
W.push_list = function(q, list, id)
  redis.call(list == 'lifo' and 'RPUSH' or 'LPUSH', q[list], id)
  G.set(q, id, 'state', 'waiting', 'eid', '')
  W.wake(q)
end

-- Put a due or promoted job into the source from which it is fetched.
W.make_ready = function(q, id, h, priority)
  if h.lifo == '1' then
    W.push_list(q, 'lifo', id)
  elseif priority > 0 then
    W.push_list(q, 'priority', id)
  else
    G.make_waiting(q, id, h.name)
  end
end

-- Acknowledge an entry; a broadcast entry stays in the stream for other groups. Return 1 if it was pending.
W.ack = function(q, group, entry, broadcast)
  if not entry or entry == '' then return 0 end
  local acked = redis.call('XACK', q.stream, group or '', entry)
  if not broadcast then redis.call('XDEL', q.stream, entry) end
  return acked
end

-- Return whether a call with `entry` (just acknowledged) is for the job's current attempt: its entry was still pending,
-- or the job is active and no other entry is known to have activated it.
W.is_current = function(h, entry, acked)
  local state = h.state
  if not state or G.TERMINAL[state] then return false end
  if entry ~= '' and acked == 1 and state == 'waiting' then return true end
  if state == 'active' then
    if entry == '' then return h.src ~= 's' end
    return acked == 1 or not h.eid or h.eid == entry
  end
  -- A revoked list job that was rejected is failed by its worker without having been active.
  return entry == '' and h.revoked == '1' and (state == 'waiting' or state == 'prioritized')
end
