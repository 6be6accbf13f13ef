-- Send commands to workers, and return their answers (docs/learn/remote-control.md). A command is appended to the
-- registration of the worker, under the key `commands`. The next heartbeat replaces the registration, and returns them.
-- A worker that sends none while its queue is idle names a channel in its registration, on which it is called.
-- control_workers: KEYS 1 meta   ARGV 1 packed {command, workers}   -> packed {sent, unknown}
--   command: JSON text   workers: names, empty = all of this library
--   sent: names   unknown: of the given ones, those that are not registered, or have too many pending commands
-- control_reply: store the answer of a worker.   KEYS 1 meta   ARGV 1 packed {request, worker, text}   -> 1
-- control_replies: KEYS 1 meta   ARGV 1 packed {request, workers}   -> the answers, in order; nil = none yet
-- Bound: 1,000 workers, the ones registered last.

G.control = {}
local C = G.control
local MARK = ',"commands":['
local CHANNEL = '"channel":"[^"]*"'
local WORKERS, PENDING_BYTES, KEPT_MS = 1000, 16384, 60000

-- Register the worker, and return the commands that its last registration holds, as texts.
C.register = function(q, consumer, info, ttl)
  local key = q.P .. 'w:' .. consumer
  local before = G.pcall('SET', key, info, 'PX', ttl, 'GET')
  if type(before) == 'table' and before.err then redis.call('SET', key, info, 'PX', ttl) end
  if type(before) ~= 'string' or not string.find(before, MARK, 1, true) then return {} end
  local texts, commands = {}, G.json(before).commands
  for _, text in ipairs(type(commands) == 'table' and commands or {}) do
    if type(text) == 'string' then texts[#texts + 1] = text end
  end
  return texts
end

-- Append a command to a registration, and call the worker. Return false if there is none, or it has too many commands.
local function send(q, consumer, command)
  local key = q.P .. 'w:' .. consumer
  local info = G.pcall('GET', key)
  if type(info) ~= 'string' or #info > PENDING_BYTES or string.sub(info, -1) ~= '}' then return false end
  local pending = string.find(info, MARK, 1, true)
  local text = cjson.encode(command)
  if pending then
    info = string.sub(info, 1, -3) .. ',' .. text .. ']}'
  else
    info = string.sub(info, 1, -2) .. MARK .. text .. ']}'
  end
  redis.call('SET', key, info, 'PX', G.int(math.max(1, redis.call('PTTL', key))))
  G.call_process(string.match(info, CHANNEL))
  return true
end

G.export('control_workers', { 'allow-oom' }, function(q, r)
  local names, given = r.workers, #r.workers > 0
  if not given then names = redis.call('ZRANGE', q.workers, -WORKERS, -1) end
  local sent, unknown = {}, {}
  for i = 1, math.min(#names, WORKERS) do
    if send(q, names[i], r.command) then
      sent[#sent + 1] = names[i]
    elseif given then
      unknown[#unknown + 1] = names[i]
    end
  end
  return { sent = sent, unknown = unknown }
end)

G.export('control_reply', { 'allow-oom' }, function(q, r)
  local suffix = 'control:' .. r.request
  redis.call('HSET', q.P .. suffix, r.worker, r.text)
  G.expire_temporary(q, suffix, G.now(q), KEPT_MS)
  return 1
end)

G.export('control_replies', { 'no-writes' }, function(q, r)
  return redis.call('HMGET', q.P .. 'control:' .. r.request, unpack(r.workers, 1, math.min(#r.workers, WORKERS)))
end)
