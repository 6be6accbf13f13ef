-- Wake-ups of processes that serve many queues (docs/learn/many-queues.md). Such a process subscribes to one channel. An
-- exchange that leaves it idle registers the channel with the queue; the next push removes one registration and
-- publishes the queue there, so it wakes one process.
-- P:wake-channels: sorted set of channels by the time of registration. Field `wakeChannels` of P:meta is there if the set
-- may not be empty, and '2' if the server is a cluster.
-- A message is only a hint: it may be lost, and the process also polls.
-- A process can also be called for another reason than a push: on a channel that it has named elsewhere (G.call_process).

local CHANNEL = G.rows.wake_channel
local DEAD_MAX = 8
local REGISTERED_MAX = 1000
-- Longer than an idle process waits between two exchanges, each of which registers its channel again, and than most steps
-- forward of the clock: a due time would wake nobody.
local KEPT_S = 365 * 86400
local SINGLE, CLUSTER = '1', '2'

-- Remove the channel that was registered last: that of a process that died is behind those of the others. Return nil
-- if there is none.
local function pop_channel(q)
  local channel = G.first(G.pcall('ZRANGE', q.wake_channels, -1, -1))
  if channel then redis.call('ZREM', q.wake_channels, channel) end
  return channel
end

local function publish(q, kind)
  for _ = 1, DEAD_MAX do
    local channel = pop_channel(q)
    if not channel then
      redis.call('HDEL', q.meta, 'wakeChannels')
      q.channels = false
      return
    end
    -- In a cluster the reply counts only the subscribers of this node. A user may lack permission for the channel.
    local heard = redis.pcall('PUBLISH', channel, q.P)
    if kind == CLUSTER or heard ~= 0 then return end
  end
end

-- Wake one registered process after a push. `q.channels`: the field of the meta hash, false if it is absent; absent if
-- this call has not read it yet.
G.ring = function(q)
  local kind = rawget(q, 'channels')
  if kind == nil then
    kind = G.pcall('HGET', q.meta, 'wakeChannels')
    if type(kind) ~= 'string' then kind = false end
    q.channels = kind
  end
  if kind then publish(q, kind) end
end

-- Register the channel of a process that waits for the next push.
G.register_channel = function(q, now, channel)
  local added = G.pcall('ZADD', q.wake_channels, now, channel[CHANNEL.name])
  if type(added) ~= 'number' then return end
  if not rawget(q, 'channels') then
    local kind = channel[CHANNEL.cluster] and CLUSTER or SINGLE
    redis.call('HSET', q.meta, 'wakeChannels', kind)
    q.channels = kind
  end
  -- A dead process of a queue that gets no more jobs, is never removed by a push.
  redis.call('EXPIRE', q.wake_channels, KEPT_S)
  if added == 1 and redis.call('ZCARD', q.wake_channels) > REGISTERED_MAX then
    redis.call('ZREM', q.wake_channels, (G.member_at(q.wake_channels, 0)))
  end
end

-- Return the channel on which a process that has written this text can be called, or nil.
G.process_channel = function(text) return type(text) == 'string' and string.match(text, 'glidemq_py:wake:%w+:c%d+') end

-- Call the process that has written this text, if it has named a channel.
G.call_process = function(text)
  local channel = G.process_channel(text)
  if channel then redis.pcall('PUBLISH', channel, '') end
end

-- Return true if channels are registered, but pushes do not look for them because the field is missing.
G.has_lost_channels = function(q)
  return G.size('ZCARD', q.wake_channels) > 0 and redis.call('HEXISTS', q.meta, 'wakeChannels') == 0
end

-- Make pushes look for channels again. The value of a cluster is right on one server as well: it skips no channel.
G.restore_channels = function(q) redis.call('HSET', q.meta, 'wakeChannels', CLUSTER) end
