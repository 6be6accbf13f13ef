-- Missing permissions: a function runs with the permissions of the user who calls it, and a denied command must never be
-- mistaken for a key of a foreign type.

-- Texts of Valkey and Redis for a command or key that the user's rules do not permit; Redis 7.0 has its own.
local DENIED = { 'NOPERM', 'ACL failure', "The user executing the script can't" }

local function is_denied(failure)
  local text = type(failure) == 'table' and failure.err or failure
  if type(text) ~= 'string' then return false end
  for i = 1, #DENIED do
    if string.find(text, DENIED[i], 1, true) then return true end
  end
  return false
end

-- redis.pcall for keys that may have a foreign type: returns the error reply, but raises a missing permission.
G.pcall = function(...)
  local reply = redis.pcall(...)
  if type(reply) == 'table' and reply.err and is_denied(reply) then error(reply, 0) end
  return reply
end

-- The same for the reply of redis.pcall itself, where each argument counts.
G.raise_denied = function(reply)
  if type(reply) == 'table' and reply.err and is_denied(reply) then error(reply, 0) end
end

-- Lua's pcall, likewise.
G.attempt = function(callback, ...)
  local ok, result = pcall(callback, ...)
  if not ok and is_denied(result) then error(result, 0) end
  return ok, result
end

-- Commands that operator functions and the code that they share use (a test compares them with the sources).
local OPERATOR_COMMANDS = {
  'DECR', 'EXISTS', 'EXPIRE', 'GET', 'INCRBY', 'PERSIST', 'PEXPIRE', 'SET', 'TTL', 'TYPE', 'UNLINK',
  'HDEL', 'HEXISTS', 'HGET', 'HINCRBY', 'HINCRBYFLOAT', 'HKEYS', 'HLEN', 'HMGET', 'HRANDFIELD', 'HSCAN', 'HSET', 'HSETNX',
  'LINDEX', 'LLEN', 'LPOP', 'LPOS', 'LRANGE', 'LREM', 'LSET', 'LTRIM', 'RPUSH',
  'SADD', 'SCARD', 'SISMEMBER', 'SMEMBERS', 'SPOP', 'SRANDMEMBER', 'SREM',
  'ZADD', 'ZCARD', 'ZCOUNT', 'ZRANDMEMBER', 'ZRANGE', 'ZRANGEBYSCORE', 'ZRANK', 'ZREM', 'ZSCORE',
  'XACK', 'XADD', 'XDEL', 'XLEN', 'XPENDING', 'XRANGE', 'XREVRANGE',
}
local SUBCOMMANDS = { 'XGROUP|CREATE', 'XGROUP|DESTROY', 'XGROUP|SETID', 'XINFO|CONSUMERS', 'XINFO|GROUPS',
  'XINFO|STREAM' }

local function denied(command)
  return redis.error_reply("ERR ACL failure in script: User has no permissions to run the '" .. string.lower(command)
    .. "' command; nothing was changed")
end

-- Return the error reply for the first command of operator functions that the user may not run on `key`, else nil.
G.missing_permission = function(key)
  local check = redis.acl_check_cmd
  if not check then return nil end
  for i = 1, #OPERATOR_COMMANDS do
    if not check(OPERATOR_COMMANDS[i], key) then return denied(OPERATOR_COMMANDS[i]) end
  end
  if not check('RENAME', key, key) then return denied('RENAME') end
  for i = 1, #SUBCOMMANDS do
    local command, subcommand = string.match(SUBCOMMANDS[i], '^(%u+)|(%u+)$')
    if not check(command, subcommand, key) then return denied(SUBCOMMANDS[i]) end
  end
  return nil
end

-- Return the callback of an operator function: it rejects a user with too few permissions before it writes, so that it
-- never ends half-way. Its first argument is the queue, or the list of declared keys.
G.for_operators = function(callback)
  return function(given, args)
    return G.missing_permission(rawget(given, 'P') and given.meta or G.first(given)) or callback(given, args)
  end
end

-- Return the callback of a function that fetches jobs, or reports or renews what was fetched: it rejects a user who may
-- not read the stream in its group, whatever place the jobs are in. Most other places need commands that producers and
-- operators have too.
G.for_workers = function(callback)
  return function(q, args)
    local check = redis.acl_check_cmd
    if check and not check('XREADGROUP', 'GROUP', G.GROUP, 'any', 'COUNT', 1, 'STREAMS', q.stream, '>') then
      -- Runs nothing, and adds a line to the server's ACL LOG.
      return redis.pcall('XREADGROUP', 'GROUP', G.GROUP, 'any', 'COUNT', 1, 'STREAMS', q.stream, '>')
    end
    return callback(q, args)
  end
end
